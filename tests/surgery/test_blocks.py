"""Detectors and segmentation networks are pruned as they come, at any image size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.networks.blocks import AttentiveDetector, C2f, Detector, VolumeUNet
from tests.support.compare import call, distance, liven, pruned
from torch import Tensor, nn

import depl0

pytestmark = pytest.mark.structures


def _volume(size: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 1, size, size, size, generator=torch.Generator().manual_seed(0))


def _picture(size: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))


NETWORKS: list[tuple[type[nn.Module], Callable[..., Tensor], int, int, float]] = [
    (Detector, _picture, 32, 48, 0.06),
    (AttentiveDetector, _picture, 32, 48, 0.6),
    (VolumeUNet, _volume, 8, 16, 0.05),
]


@pytest.mark.filterwarnings("error:input's size")  # what a norm without parameters says if it expects more channels
@pytest.mark.parametrize(("build", "inputs", "size", "other", "least"), NETWORKS)
def test_networks_that_people_prune(
    build: type[nn.Module], inputs: Callable[..., Tensor], size: int, other: int, least: float, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    gated, compact = pruned(liven(build(), inputs(size)), inputs(size))
    for case in (inputs(size), inputs(other), inputs(other, 2)):
        assert distance(call(gated, case), call(compact, case)) < 1e-5
    assert gated.plan.least() < least, str(gated.plan)
    assert "training mode" in gated.plan.covered and any("size" in what for what in gated.plan.covered)
    loaded = depl0.load(depl0.save(compact, tmp_path), build).eval()
    assert distance(call(compact, inputs(other)), call(loaded, inputs(other))) == 0


def test_a_width_that_only_another_method_reads_follows_the_cut() -> None:
    torch.manual_seed(0)
    _, compact = pruned(liven(Detector(), _picture(32)), _picture(32))
    wanted = call(compact, _picture(32))
    for block in compact.modules():
        if isinstance(block, C2f):
            assert 2 * block.width == block.one.conv.out_channels
            block.forward = block.forward_for_export  # as exporters do
    assert distance(wanted, call(compact, _picture(32))) == 0
