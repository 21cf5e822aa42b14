"""Prune a network on raw audio. Channels are judged without labels: by how much the outputs change without them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import depl0

BUDGET = 0.3
STEPS, BATCH, RATE, LENGTH = 150, 32, 4000, 512


def tones(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return noisy tones of an eighth of a second. The classes are pure, square, rising and falling."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=rng)
    time = torch.arange(LENGTH) / RATE
    pitch = 600 + 200 * torch.rand(count, 1, generator=rng)
    slope = torch.tensor([0.0, 0.0, 4000.0, -4000.0])[labels].unsqueeze(1)
    wave = torch.sin(2 * torch.pi * (pitch * time + slope * time**2 / 2) + 6.3 * torch.rand(count, 1, generator=rng))
    wave = torch.where((labels == 1).unsqueeze(1), wave.sign(), wave)
    return (wave + 0.2 * torch.randn(count, LENGTH, generator=rng)).unsqueeze(1), labels


def network() -> nn.Module:
    """Convolutions over time."""

    def block(channels: int, filters: int, width: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv1d(channels, filters, width, stride, padding=width // 2, bias=False)
        return [convolution, nn.BatchNorm1d(filters), nn.ReLU()]

    blocks = [*block(1, 24, 17, 4), *block(24, 32, 5, 2), *block(32, 32, 5, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))


@torch.no_grad()
def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the share of sounds whose kind is found."""
    model.eval()
    return float((model(data[0]).argmax(1) == data[1]).float().mean())


def main() -> None:
    """Train with open gates for a while, then prune, and tell what was reached."""
    torch.manual_seed(0)
    (sounds, labels), test = tones(1024, seed=0), tones(512, seed=1)
    gated = depl0.attach(network(), sounds[:1], budget=BUDGET)
    optimizer = torch.optim.AdamW(gated.parameter_groups(lr=1e-2, steps=STEPS))
    unlabelled = list(sounds[:256].split(64))  # inputs alone, and no loss
    search = depl0.Search(gated, STEPS, optimizers=[optimizer], calibrate=unlabelled, warmup=0.3, ramp=0.4)
    for step in range(STEPS):
        search.step()
        start = step * BATCH % len(sounds)
        nn.functional.cross_entropy(gated(sounds[start : start + BATCH]), labels[start : start + BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    compact = search.finish()
    print(depl0.info(compact))
    print(f"accuracy {accuracy(compact, test):.1%}")


if __name__ == "__main__":
    main()
