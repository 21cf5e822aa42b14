"""Whole networks: detectors at any image size, and random networks with random gates, whatever the wiring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.networks.blocks import AttentiveDetector, C2f, Detector
from tests.support.compare import call, distance, liven, pruned, same_cost
from tests.support.hostile_values import CASES
from torch import Tensor, nn

import depl0

pytestmark = pytest.mark.structures

IMAGES = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("build", "least"), [(Detector, 0.06), (AttentiveDetector, 0.6)])
def test_detectors_are_pruned_exactly_at_any_size(build: type[nn.Module], least: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = IMAGES[:1, :, :32, :32]
    gated, compact = pruned(liven(build(), small), small)
    for images in (small, IMAGES[:1], IMAGES):
        assert distance(call(gated, images), call(compact, images)) < 1e-5
    assert gated.plan.least() < least, str(gated.plan)
    assert "training mode" in gated.plan.covered and any("size" in what for what in gated.plan.covered)
    loaded = depl0.load(depl0.save(compact, tmp_path), build).eval()
    assert distance(call(compact, IMAGES), call(loaded, IMAGES)) == 0


def test_a_width_that_only_another_method_reads_follows_the_cut() -> None:
    torch.manual_seed(0)
    _, compact = pruned(liven(Detector(), IMAGES), IMAGES)
    wanted = call(compact, IMAGES)
    for block in compact.modules():
        if isinstance(block, C2f):
            assert 2 * block.width == block.one.conv.out_channels
            block.forward = block.forward_for_export  # as exporters do
    assert distance(wanted, call(compact, IMAGES)) == 0


STEPS = (
    "conv",
    "conv-norm",
    "norm-conv",
    "depthwise",
    "grouped",
    "add",
    "cat",
    "excite",
    "pool",
    "act",
    "glu",
    "scale",
)


class RandomNetwork(nn.Module):
    """Keeps a list of maps; every step makes one more from earlier ones."""

    def __init__(self, steps: list[tuple[str, int, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList()
        self.scales = nn.ParameterList()
        widths = [3]
        for kind, first, second, width in steps:
            a, b = widths[first % len(widths)], widths[second % len(widths)]
            layers, scale, out = self._make(kind, a, b, width)
            self.layers.append(nn.ModuleList(layers))
            self.scales.append(nn.Parameter(torch.rand(scale, 1, 1) + 0.5))
            widths.append(out)
        self.head = nn.Linear(widths[-1], 3)

    @staticmethod
    def _make(kind: str, a: int, b: int, width: int) -> tuple[list[nn.Module], int, int]:
        if kind == "conv":
            return [nn.Conv2d(a, width, 3, padding=1)], 1, width
        if kind == "conv-norm":
            return [nn.Conv2d(a, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)], 1, width
        if kind == "norm-conv":
            return [nn.BatchNorm2d(a), nn.Conv2d(a, width, 1)], 1, width
        if kind == "depthwise":
            return [nn.Conv2d(a, 2 * a, 3, padding=1, groups=a)], 1, 2 * a
        if kind == "grouped":
            return [nn.Conv2d(a, 2 * width, 1), nn.Conv2d(2 * width, 4 * width, 1, groups=width)], 1, 4 * width
        if kind == "add":
            return [nn.Conv2d(b, a, 1)] if a != b else [], 1, a
        if kind == "excite":
            return [nn.Linear(a, width), nn.Linear(width, a)], 1, a
        if kind == "glu":
            return [nn.Conv2d(a, 2 * width, 1)], 1, width
        return [], a if kind == "scale" else 1, a + b if kind == "cat" else a

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for (kind, first, second, _), layers, scale in zip(self.steps, self.layers, self.scales, strict=True):
            a, b = maps[first % len(maps)], maps[second % len(maps)]
            maps.append(self._step(kind, a, b, list(layers), scale))
        return self.head(maps[-1].mean((2, 3)))

    def _step(self, kind: str, a: Tensor, b: Tensor, layers: list[Any], scale: Tensor) -> Tensor:
        if kind in {"conv", "depthwise"}:
            return F.relu(layers[0](a))
        if kind == "conv-norm":
            return F.silu(layers[1](layers[0](a)))
        if kind == "norm-conv":
            return layers[1](F.relu(layers[0](a)))
        if kind == "grouped":
            return layers[1](torch.sigmoid(layers[0](a)))
        if kind == "add":
            return F.relu(a + (layers[0](b) if layers else b))
        if kind == "cat":
            return torch.cat([a, b], 1)
        if kind == "excite":
            factor = torch.sigmoid(layers[1](F.relu(layers[0](a.mean((2, 3))))))
            return a * factor[:, :, None, None]
        if kind == "glu":
            value, factor = layers[0](a).chunk(2, 1)
            return value * torch.sigmoid(factor)
        if kind == "pool":
            return F.max_pool2d(a, 3, stride=1, padding=1)
        return a * scale if kind == "scale" else torch.tanh(a + 0.5)


step = st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.integers(0, 7), st.integers(2, 5))


@settings(max_examples=int(24 * CASES), suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(step, min_size=2, max_size=6), seed=st.integers(0, 2**16), share=st.sampled_from([0.2, 0.5, 0.9]))
def test_random_network_is_pruned_exactly(steps: list[tuple[str, int, int, int]], seed: int, share: float) -> None:
    torch.manual_seed(seed)
    inputs = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    host = liven(RandomNetwork([("conv", 0, 0, 4), *steps]), inputs, seed).double()
    try:
        gated = depl0.attach(host, inputs).eval()
    except depl0.errors.NothingToPruneError:
        return
    gates = torch.rand(gated.plan.num_gates)
    gated.fix_gates(torch.where(torch.rand_like(gates) < share, 0.0, gates))
    compact = gated.extract().eval()
    assert type(compact) is RandomNetwork
    assert distance(call(gated, inputs), call(compact, inputs)) < 1e-9
    assert same_cost(gated.kept_cost(), depl0.cost(compact, inputs))
    assert distance(call(gated, inputs), call(gated.extract(remove_blocks=True).eval(), inputs)) < 1e-9
