"""Prune a residual network that reads an angle from an image: half the parameters, in multiples of 4 channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import depl0

BUDGET = 0.5
STEPS, BATCH = 150, 32


def pointers(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy 16×16 images of a pointer on a dial, and where it points to: sine and cosine."""
    rng = torch.Generator().manual_seed(seed)
    angle = 2 * torch.pi * torch.rand(count, 1, 1, generator=rng)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    along, across = x * angle.cos() + y * angle.sin(), x * angle.sin() - y * angle.cos()
    images = ((along > 0) & (across.abs() < 0.15)).float() + 0.2 * torch.randn(count, 16, 16, generator=rng)
    return images.unsqueeze(1), torch.cat([angle.sin(), angle.cos()], dim=1).squeeze(2)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        return torch.relu(x + self.second(self.first(x)))


def network() -> nn.Module:
    """Three blocks, and a linear layer that still knows where things were."""
    stem = [nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, Block(16), Block(16), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 2))


@torch.no_grad()
def error_in_degrees(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the mean angle between what is found and what is right."""
    model.eval()
    found, wanted = (torch.atan2(*pair.T) for pair in (model(data[0]), data[1]))
    return float(torch.rad2deg(torch.remainder(found - wanted + torch.pi, 2 * torch.pi) - torch.pi).abs().mean())


def main() -> None:
    """Train, prune, and tell what was reached."""
    torch.manual_seed(0)
    (images, angles), test = pointers(1024, seed=0), pointers(256, seed=1)
    gated = depl0.attach(network(), images[:1], budget=BUDGET, of="params", round_to=4)
    optimizer = torch.optim.AdamW(gated.parameter_groups(lr=5e-3, steps=STEPS))
    calibrate = [(images[:128], angles[:128])]
    search = depl0.Search(gated, STEPS, optimizers=[optimizer], calibrate=calibrate, loss=nn.functional.mse_loss)
    for step in range(STEPS):
        search.step()
        start = step * BATCH % len(images)
        nn.functional.mse_loss(gated(images[start : start + BATCH]), angles[start : start + BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    compact = search.finish()
    print(depl0.info(compact))
    print(f"mean error {error_in_degrees(compact, test):.1f} degrees")


if __name__ == "__main__":
    main()
