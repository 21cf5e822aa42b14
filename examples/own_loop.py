"""Prune in a training loop of your own.

Everything that such loops have is here: mixed precision, accumulated gradients, a learning-rate schedule, a running
mean of the weights, and a checkpoint from which training resumes. What depl0 adds is marked with an arrow.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import depl0

BUDGET = 0.5
STEPS, ACCUMULATE, BATCH = 120, 2, 32


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy 16×16 images of stripes; the class is their direction, one of four."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=rng)
    angle, phase = labels * torch.pi / 4, 6.3 * torch.rand(count, generator=rng)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    wave = torch.einsum("n,hw->nhw", angle.cos(), x) + torch.einsum("n,hw->nhw", angle.sin(), y)
    images = torch.sin(wave + phase.view(-1, 1, 1)) + 0.8 * torch.randn(count, 16, 16, generator=rng)
    return images.unsqueeze(1), labels


def network() -> nn.Module:
    """Return a small convolutional classifier."""

    def block(channels: int, filters: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(*block(1, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), *head)


class Training:
    """All objects of a training; created again from a checkpoint when it is resumed."""

    def __init__(self, data: tuple[Tensor, Tensor], checkpoint: Path | None = None) -> None:
        saved = None if checkpoint is None else torch.load(checkpoint, weights_only=True)  # noqa: TID251
        torch.manual_seed(0)
        self.data = data
        self.gated = depl0.attach(network(), data[0][:2], budget=BUDGET)  # ←
        if saved is not None:
            self.gated.load_state_dict(saved["gated"])  # brings the network to its size, so it comes first
        weights, gates = self.gated.parameter_groups(lr=0.1, steps=STEPS, weight_decay=1e-4)
        self.weights, self.gates = torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([gates])
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.weights, max_lr=0.1, total_steps=STEPS)
        self.mean = AveragedModel(self.gated, multi_avg_fn=get_ema_multi_avg_fn(0.95))
        if saved is not None:
            for name in ("weights", "gates", "schedule", "mean"):
                getattr(self, name).load_state_dict(saved[name])
            torch.set_rng_state(saved["rng"])
        self.search = depl0.Search(  # ←
            self.gated,
            STEPS,
            optimizers=[self.weights],
            averages=[self.mean],
            calibrate=[(data[0][:128], data[1][:128])],
            loss=nn.functional.cross_entropy,
            state=None if saved is None else saved["search"],
        )

    def run(self, until: int) -> None:
        """Train up to a step."""
        images, labels = self.data
        for step in range(self.search.done, until):
            self.search.step()  # ←
            for part in range(ACCUMULATE):
                start = (step * ACCUMULATE + part) * BATCH % len(images)
                x, y = images[start : start + BATCH], labels[start : start + BATCH]
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.cross_entropy(self.gated(x), y)
                (loss / ACCUMULATE).backward()
            for optimizer in (self.weights, self.gates):
                optimizer.step()
                optimizer.zero_grad()
            self.schedule.step()
            self.mean.update_parameters(self.gated)

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        names = ("gated", "weights", "gates", "schedule", "mean", "search")
        state = {name: getattr(self, name).state_dict() for name in names}
        torch.save({**state, "rng": torch.get_rng_state()}, path)  # noqa: TID251


@torch.no_grad()
def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the share of images whose class is found."""
    model.eval()
    return float((model(data[0]).argmax(1) == data[1]).float().mean())


def main() -> None:
    """Train to two thirds, save, resume from the file, and take the compact network."""
    train, test = stripes(1024, seed=0), stripes(512, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        first = Training(train)
        first.run(until=2 * STEPS // 3)
        first.save(checkpoint)
        training = Training(train, checkpoint)
    print(f"resumed at step {training.search.done}, {training.gated.kept.float().mean():.0%} of the channels there")
    training.run(until=STEPS)
    training.gated.host.load_state_dict(training.mean.module.host.state_dict())  # the running mean as weights
    compact = training.search.finish()  # ←
    print(depl0.info(compact))
    print(f"accuracy {accuracy(compact, test):.1%}")


if __name__ == "__main__":
    main()
