"""Prune a U-Net that separates discs from their background."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import depl0

BUDGET = 0.4
STEPS, BATCH, SIZE = 150, 16, 24


def discs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy images of two discs of any brightness on a dark ground, and the map of what belongs to them."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    images, maps = torch.zeros(count, SIZE, SIZE), torch.zeros(count, SIZE, SIZE)
    for image, where in zip(images, maps, strict=True):
        for row, column, radius, brightness in torch.rand(2, 4, generator=rng).tolist():
            distance = (y - SIZE * row) ** 2 + (x - SIZE * column) ** 2
            inside = distance < (3 + 4 * radius) ** 2
            image[inside], where[inside] = 0.6 + brightness, 1.0
    images += 0.3 * torch.randn(images.shape, generator=rng)
    return images.unsqueeze(1), maps.unsqueeze(1)


def block(channels: int, filters: int) -> nn.Module:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(),
        nn.Conv2d(filters, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down twice and up again, with what was seen on the way down beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.middle, self.bottom = block(1, 8), block(8, 16), block(16, 16)
        self.up_middle, self.up_top = block(32, 16), block(24, 8)
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for every pixel."""
        top = self.top(x)
        middle = self.middle(self.pool(top))
        bottom = self.bottom(self.pool(middle))
        middle = self.up_middle(torch.cat([self.up(bottom), middle], dim=1))
        return self.last(self.up_top(torch.cat([self.up(middle), top], dim=1)))


@torch.no_grad()
def overlap(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return intersection over union."""
    model.eval()
    found, wanted = model(data[0]) > 0, data[1] > 0
    return float((found & wanted).sum() / (found | wanted).sum())


def main() -> None:
    """Train, prune, and tell what was reached."""
    torch.manual_seed(0)
    (images, maps), test = discs(320, seed=0), discs(64, seed=1)
    loss = nn.functional.binary_cross_entropy_with_logits
    gated = depl0.attach(UNet(), images[:1], budget=BUDGET)
    optimizer = torch.optim.AdamW(gated.parameter_groups(lr=1e-2, steps=STEPS))
    search = depl0.Search(gated, STEPS, optimizers=[optimizer], calibrate=[(images[:64], maps[:64])], loss=loss)
    for step in range(STEPS):
        search.step()
        start = step * BATCH % len(images)
        loss(gated(images[start : start + BATCH]), maps[start : start + BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    compact = search.finish()
    print(depl0.info(compact))
    print(f"intersection over union {overlap(compact, test):.3f}")


if __name__ == "__main__":
    main()
