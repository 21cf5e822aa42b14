"""A network and data small enough for a training of some seconds, whose channels close early."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

STEPS = 40
BATCH = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


def network() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def dataset(size: int = 80) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(size) % 4
    images = torch.randn(size, 1, 6, 6, generator=rng) + labels.view(-1, 1, 1, 1).float()
    return TensorDataset(images, labels)


def batches(count: int = 2) -> list[tuple[Tensor, Tensor]]:
    images, labels = dataset().tensors
    return [(images[i * BATCH : (i + 1) * BATCH], labels[i * BATCH : (i + 1) * BATCH]) for i in range(count)]


EXAMPLE = torch.zeros(2, 1, 6, 6)
