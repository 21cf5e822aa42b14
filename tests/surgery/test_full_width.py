"""Modules that look at all channels at once: cut again and again, saved, loaded and deployed."""

from __future__ import annotations

import copy
import json
import pickle  # noqa: TID251
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
import torch
from tests.networks.all_channels import AttendsToChannels, SpatialAttention
from tests.networks.structures import image
from tests.support.compare import call, distance, liven, pruned, random_gates
from torch import nn

import depl0
from depl0.export import export_onnx
from depl0.host.copies import private_copy
from depl0.replacements.full_width import FullWidth, WidthSpec, keep_full_width

pytestmark = pytest.mark.structures


def test_removed_channels_are_zeros() -> None:
    torch.manual_seed(0)
    module, kept = SpatialAttention(), torch.tensor([0, 2, 5])
    x = -torch.rand(2, 3, 4, 4)  # so that the largest is one of the zeros
    wanted = module(torch.zeros(2, 6, 4, 4).index_copy(1, kept, x)).index_select(1, kept)
    spec = WidthSpec(6, 1, 1, True)
    keep_full_width(module, spec, kept)
    assert torch.equal(module(x), wanted)
    assert isinstance(module, SpatialAttention) and isinstance(module, FullWidth)
    assert "3 of 6 channels, the others are zeros" in repr(module)
    keep_full_width(module, spec, torch.tensor([1]))
    assert module(x[:, :1]).shape == (2, 1, 4, 4)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), private_copy])
def test_a_module_at_full_width_can_be_pickled_and_copied(again: Callable[[nn.Module], nn.Module]) -> None:
    module, x = nn.Sequential(SpatialAttention()), torch.randn(2, 3, 4, 4)
    keep_full_width(module[0], WidthSpec(6, 1, 1, True), torch.tensor([0, 2, 5]))
    other = again(module)
    assert type(other[0]) is type(module[0]) and other[0] is not module[0]
    assert torch.equal(other(x), module(x))


def test_cut_in_training_saved_loaded_and_deployed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, other = image(batch=1), torch.randn(1, 3, 8, 8)
    gated = depl0.attach(liven(AttendsToChannels(), x), x).eval()
    assert gated.plan.to_dict()["replaced"]["full_width"] == ["where", "near.conv", "map"]
    assert "3 modules that look at all channels at once get zeros for removed ones (FullWidth)" in str(gated.plan)
    first = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    first[[0, 5, 9]] = True
    gated.remove(first)
    wanted = call(gated, x)
    gated.cut()
    assert isinstance(gated.host.where, FullWidth) and distance(wanted, call(gated, x)) < 1e-6
    gates = random_gates(gated.plan.num_gates, 1)
    gates[first] = 0
    gated.fix_gates(gates)
    compact = gated.extract().eval()
    folder = depl0.save(compact, tmp_path / "compact")
    loaded = depl0.load(folder, AttendsToChannels)
    assert torch.equal(call(compact, other), call(loaded, other))
    session = onnxruntime.InferenceSession(export_onnx(loaded, x, tmp_path / "compact.onnx"))
    assert distance(call(compact, other), torch.from_numpy(session.run(None, {"input": other.numpy()})[0])) < 1e-5
    again, smaller = pruned(loaded, x, seed=4)
    assert again.plan.replacements["where"].spec.width == 8
    assert distance(call(again, other), call(smaller, other)) < 1e-5
    reloaded = depl0.load(depl0.save(smaller, tmp_path / "smaller"), AttendsToChannels)
    assert torch.equal(call(smaller, other), call(reloaded, other))


@pytest.mark.parametrize(
    ("part", "path", "key", "value"),
    [
        ("replaced", "where", "width", 0),
        ("replaced", "where", "dim", "1"),
        ("replaced", "where", "kind", "other"),
        ("keep", "where.(channels)", "0", [9]),
    ],
)
def test_damaged_description(part: str, path: str, key: str, value: object, tmp_path: Path) -> None:
    folder = depl0.save(pruned(AttendsToChannels(), image())[1], tmp_path)
    header = json.loads((folder / "compact.json").read_text())
    header[part][path][key] = value
    (folder / "compact.json").write_text(json.dumps(header))
    with pytest.raises(depl0.errors.FormatError, match="is damaged"):
        depl0.load(folder, AttendsToChannels)


def test_large_modules_are_left_alone() -> None:
    class Large(SpatialAttention):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Conv2d(24, 24, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.mix(x))

    network = nn.Sequential(nn.Conv2d(3, 24, 1), Large(), nn.Conv2d(24, 6, 1), nn.Conv2d(6, 2, 1))
    assert [group.name for group in depl0.plan(network, image()).groups] == ["0", "2"]
