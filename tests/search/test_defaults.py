"""The default type and device of new tensors are the user's; depl0 neither depends on them nor changes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depl0

LOSS = nn.functional.cross_entropy


class Net(nn.Module):
    """Makes a tensor in forward, by the defaults of whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 3)
        self.mode = ""

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros(1)
        self.mode = f"{made.dtype} {made.device}"
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def batch(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(16, 1, 5, 5, generator=rng, dtype=torch.float64, device="cpu").to(dtype)
    return images, torch.arange(16, device="cpu") % 3


@contextmanager
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def pruned(host: nn.Module, dtype: torch.dtype, **settings: Any) -> list[Tensor]:
    """Search, finish and prune at once; return the weights of both compact networks."""
    (x, y), steps = batch(dtype), 6
    gated = depl0.attach(host, x[:1], budget=0.5, rng=torch.Generator().manual_seed(0)).train()
    optimizer = torch.optim.SGD([gated.parameter_groups(lr=0.1, steps=steps)[0]])
    search = depl0.Search(gated, steps, optimizers=[optimizer], calibrate=[(x, y)], loss=LOSS, **settings)
    for _ in range(steps):
        search.step()
        gated.fix_gates(gated.evaluation_gates())  # what is sampled depends on the device
        (LOSS(gated(x), y) + gated.penalty("macs")).backward()
        optimizer.step()
        optimizer.zero_grad()
        gated.free_gates()
    found = [search.finish(), depl0.prune(host, x[:1], data=[x], budget=0.5, recover=2)]
    return [tensor.detach().float() for network in found for tensor in network.state_dict().values()]


@pytest.mark.parametrize(
    "settings", [{}, {"compensate": True, "first_scores": "reconstruction"}], ids=["taylor", "fit"]
)
@pytest.mark.parametrize("defaults", [double, lambda: torch.device("meta")], ids=["float64", "meta"])
def test_results_do_not_depend_on_the_defaults(defaults: Any, settings: Any) -> None:
    hosts = []
    for _ in range(2):
        torch.manual_seed(0)
        hosts.append(Net())
    plain = pruned(hosts[0], torch.float32, **settings)
    with defaults() as _:
        own = torch.zeros(1)
        other = pruned(hosts[1], torch.float32, **settings)
        assert torch.zeros(1).dtype == own.dtype and torch.zeros(1).device == own.device
    assert hosts[1].mode == f"{own.dtype} {own.device}", "the network itself was run with other defaults than its own"
    assert len(plain) == len(other) and all(map(torch.equal, plain, other))
