"""Networks whose layers read pruned channels in every way that compensation knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import depl0
from depl0.gated import GatedModel


class Plain(nn.Module):
    """Two layers without anything between them: channel 2 of the first is a combination of channels 0 and 1."""

    def __init__(self, first: nn.Module, reader: nn.Module, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.reader = first, between or nn.Identity(), reader
        with torch.no_grad():
            for tensor in (first.weight, first.bias):
                tensor[2] = 0.5 * tensor[0] - 1.5 * tensor[1]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.reader(self.between(self.first(x)))
        return y


def inputs(*shape: int, count: int = 2) -> list[Tensor]:
    rng = torch.Generator().manual_seed(5)
    return [torch.randn(16, *shape, generator=rng, dtype=torch.float64) for _ in range(count)]


def gated_of(model: nn.Module, batches: list[Any], groups: str = "all") -> GatedModel:
    model = model.double().eval()
    example = batches[0][:1] if isinstance(batches[0], Tensor) else batches[0]
    gated = depl0.attach(model, example, generator="independent", groups=groups)
    gated.eval()
    return gated


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


READERS = {
    "strided": lambda: (nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3, stride=2, padding=1), None, (2, 9, 8)),
    "dilated": lambda: (nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, (3, 2), dilation=2, padding="same"), None, (2, 9, 8)),
    "reflecting": lambda: (nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), None, (2, 9, 8)),
    "no bias": lambda: (nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3, bias=False), None, (2, 9, 8)),
    "one dimension": lambda: (nn.Conv1d(2, 4, 3), nn.Conv1d(4, 3, 3, stride=2, padding=1), None, (2, 20)),
    "three dimensions": lambda: (nn.Conv3d(2, 4, 2), nn.Conv3d(4, 3, 2, padding=1), None, (2, 5, 5, 5)),
    "linear": lambda: (nn.Linear(6, 4), nn.Linear(4, 3), None, (6,)),
    "linear over tokens": lambda: (nn.Linear(6, 4), nn.Linear(4, 3), None, (5, 6)),
    "flattened maps": lambda: (nn.Conv2d(2, 4, 3), nn.Linear(16, 3), nn.Flatten(), (2, 4, 4)),
}  # fmt: skip
