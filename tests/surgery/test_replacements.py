"""Modules that take the place of others: the contract of all kinds, and each kind exact, trained on and saved."""

from __future__ import annotations

import copy
import json
import pickle  # noqa: TID251
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from tests.networks.streams import (
    AttendsToChannels,
    ImageStream,
    ResponseNorm,
    RmsByHand,
    RmsInFloat,
    RmsLessOne,
    SpatialAttention,
)
from tests.networks.structures import image
from tests.support.compare import call, distance, liven, pruned, random_gates, same_cost
from torch import Tensor, nn

import depl0
import depl0.replacements
from depl0.export import export_onnx
from depl0.export.program import capture
from depl0.host.copies import isolated_deepcopy
from depl0.replacements.attention import AttentionReplacement, AttentionSpec, PrunedAttention
from depl0.replacements.base import Replacement, kinds, replacement_from
from depl0.replacements.constant import Removal
from depl0.replacements.full_width import FullWidth, WidthSpec, keep_full_width
from depl0.replacements.norm import CountedNorm, NormSpec, recognise

pytestmark = pytest.mark.structures

SPECS: dict[str, Any] = {
    "attention": AttentionSpec("torch", 2, 4, 0.5),
    "constant": Removal("conv", None, True),
    "full_width": WidthSpec(8, 1, None, False),
    "norm": NormSpec("layer", -1, 8, 1e-5, "weight", None),
}


def test_every_kind_is_tested_here() -> None:
    assert {kind.kind for kind in kinds()} == set(SPECS)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.kind)
def test_spec_survives_json_and_damage_is_refused(kind: type[Replacement]) -> None:
    data = json.loads(json.dumps(kind(SPECS[kind.kind]).to_dict()))
    assert replacement_from(data) == kind(SPECS[kind.kind])
    for key in data.keys() - {"kind"}:
        with pytest.raises(ValueError, match=f"describes no {kind.kind}: see {key}"):
            replacement_from({**data, key: [data[key]]})
    with pytest.raises(ValueError, match="see extra"):
        replacement_from({**data, "extra": 1})
    with pytest.raises(ValueError, match="no replacement is of the kind 'other'"):
        replacement_from({**data, "kind": "other"})


# -- norms that count removed channels ---------------------------------------------------------------------------------

WIDTH, KEPT = 10, torch.tensor([0, 3, 4, 8])
NORMS = {
    "layer": (lambda: nn.LayerNorm(WIDTH), (2, 5, WIDTH), -1),
    "rms, eps of the precision": (lambda: nn.RMSNorm(WIDTH), (2, 5, WIDTH), -1),
    "rms by hand": (lambda: RmsByHand(WIDTH), (2, 5, WIDTH), -1),
    "rms, scale less one": (lambda: RmsLessOne(WIDTH), (2, 5, WIDTH), -1),
    "rms in float32": (lambda: RmsInFloat(WIDTH), (2, 5, WIDTH), -1),
    "group": (lambda: nn.GroupNorm(1, WIDTH, eps=0.1), (2, WIDTH, 3, 4), 1),
    "response": (lambda: ResponseNorm(WIDTH), (2, 3, 4, WIDTH), -1),
}


def counted(module: nn.Module, spec: NormSpec) -> CountedNorm:
    """Return the norm with only the kept channels of its parameters."""
    smaller = copy.deepcopy(module)
    for name, parameter in list(smaller.named_parameters()):
        dim = next(dim for dim, size in enumerate(parameter.shape) if size > 1)
        smaller._parameters[name] = nn.Parameter(parameter.detach().index_select(dim, KEPT))
    return CountedNorm(smaller, spec)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_is_left_is_normalised_as_with_zeros(name: str, dtype: torch.dtype) -> None:
    build, shape, dim = NORMS[name]
    torch.manual_seed(0)
    module = build()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    spec = recognise(module, dim % len(shape), len(shape), WIDTH, [None, 0.01, 1e-5, 1e-6, 0.1])
    assert spec is not None and spec.form == name.split(" ")[0].strip(",") and spec.width == WIDTH
    module = module.to(dtype)
    kept = torch.randn(shape, dtype=dtype).index_select(dim, KEPT) + 2
    dense = torch.zeros(shape, dtype=dtype).index_copy(dim, KEPT, kept)
    found = counted(module, spec)(kept)
    assert found.dtype == dtype
    allowed = 1e-6 if spec.single else 1e-13
    assert spec.single == (name == "rms in float32")
    assert distance(module(dense).index_select(dim, KEPT), found) < (allowed if dtype == torch.float64 else 2e-2)


@pytest.mark.parametrize(
    "module", [nn.GroupNorm(2, WIDTH), nn.BatchNorm1d(WIDTH), nn.Softmax(-1), nn.Sequential(nn.LayerNorm(WIDTH))]
)
def test_other_modules_are_no_norms_over_all_channels(module: nn.Module) -> None:
    assert recognise(module, 1, 2, WIDTH, [1e-5]) is None


class SmallStream(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.one, self.two, self.last = nn.Linear(8, 12), nn.Linear(12, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        return self.head(self.last(x + self.two(F.gelu(self.one(self.norm(x))))))


def test_cutting_goes_on_where_it_was_begun() -> None:
    """A smaller host trains on; what is extracted from it, and from a compact network again, counts the dense width."""
    x = torch.randn(4, 5, 6)
    host = liven(SmallStream(), x)
    gated = depl0.attach(host, x).eval()
    assert "norms over all channels that still count removed channels, as zeros (CountedNorm): 2" in str(gated.plan)
    first = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    first[[0, 5, 9]] = True
    gated.remove(first)
    wanted = call(gated, x)
    gated.cut()
    assert isinstance(gated.host.norm, CountedNorm) and gated.host.norm.spec.width == 8
    assert distance(wanted, call(gated, x)) < 1e-6
    gates = random_gates(gated.plan.num_gates, 1)
    gates[first] = 0
    gated.fix_gates(gates)
    compact = gated.extract().eval()
    assert len(compact.norm.weight) < 6 and compact.norm.spec.width == 8
    again, smaller = pruned(compact, x, seed=4)
    assert again.plan.num_gates < gated.plan.num_gates and set(again.plan.replacements) == {"norm", "last"}
    assert smaller.norm.spec.width == 8 and distance(call(again, x), call(smaller, x)) < 1e-5


def test_norms_that_lose_nothing_are_left_alone() -> None:
    gated = depl0.attach(SmallStream(), torch.randn(2, 5, 6)).eval()
    gates = torch.ones(gated.plan.num_gates)
    gates[-1] = 0  # of the inner group
    gated.fix_gates(gates)
    assert type(gated.extract().norm) is nn.LayerNorm


def test_saved_loaded_and_deployed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = image(batch=1)
    _, compact = pruned(liven(ImageStream(), x), x)
    folder = depl0.save(compact, tmp_path / "compact")
    loaded = depl0.load(folder, ImageStream).eval()
    assert isinstance(loaded.response, CountedNorm) and isinstance(loaded.plain, CountedNorm)
    other = torch.randn(1, 3, 8, 8)
    assert torch.equal(call(compact, other), call(loaded, other))
    session = onnxruntime.InferenceSession(export_onnx(loaded, x, tmp_path / "compact.onnx"))
    assert distance(call(compact, other), torch.from_numpy(session.run(None, {"input": other.numpy()})[0])) < 1e-5
    assert distance(call(compact, other), capture(loaded, x).module()(other)) < 1e-6


# -- modules that look at all channels at once -------------------------------------------------------------------------


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


@pytest.mark.parametrize("again", [lambda module: pickle.loads(pickle.dumps(module)), isolated_deepcopy])
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
    assert "modules that look at all channels at once and get zeros for removed ones (FullWidth): 3" in str(gated.plan)
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


# -- attention with widths of its own ----------------------------------------------------------------------------------

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


def both() -> tuple[nn.MultiheadAttention, PrunedAttention]:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    spec = AttentionReplacement.recognise(module)
    assert spec == AttentionSpec("torch", 2, 4, 0.5)
    return module, PrunedAttention(module, spec).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": CAUSAL, "key_padding_mask": PADDED},
        {"attn_mask": torch.randn(4, 5, 5), "need_weights": False},
    ],
)
def test_is_called_as_torchs_own(options: dict[str, object]) -> None:
    module, pruned_one = both()
    (wanted, weights), (found, found_weights) = module(X, X, X, **options), pruned_one(X, X, X, **options)
    assert distance(wanted, found) < 1e-6
    assert (weights is None) == (found_weights is None)
    assert weights is None or distance(weights, found_weights) < 1e-6


def test_without_a_batch_and_with_another_key() -> None:
    module, pruned_one = both()
    x = X[0]
    assert distance(module(x, x, x), pruned_one(x, x, x)) < 1e-6
    with pytest.raises(ValueError, match="reads one input"):
        pruned_one(X, X.clone(), X)


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
        nn.MultiheadAttention(8, 2, add_bias_kv=True),
    ],
)
def test_other_modules_are_not_taken_for_it(module: nn.Module) -> None:
    assert AttentionReplacement.recognise(module) is None


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.into(x)).mean(1))


def test_transformer_layer_trained_on_saved_and_deployed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 5, 6)
    gated = depl0.attach(Encoder(), x).eval()
    assert gated.plan.least() < 0.15
    assert "attention modules that are replaced where they lose channels (PrunedAttention): 1" in str(gated.plan)
    gates = random_gates(gated.plan.num_gates, 1)
    gated.remove(gates == 0)
    wanted = call(gated, x)
    gated.cut()
    assert isinstance(gated.host.layer.self_attn, PrunedAttention) and distance(wanted, call(gated, x)) < 1e-6
    more = torch.where(random_gates(gated.plan.num_gates, 2) == 0, 0.0, gates)
    gated.fix_gates(more)
    compact = gated.extract().eval()
    assert same_cost(gated.kept_cost(), depl0.cost(compact, x))
    folder = depl0.save(compact, tmp_path / "compact")
    loaded = depl0.load(folder, Encoder).eval()
    other = torch.randn(1, 5, 6)
    assert torch.equal(call(compact, other), call(loaded, other))
    session = onnxruntime.InferenceSession(export_onnx(loaded, x, tmp_path / "compact.onnx"))
    assert distance(call(compact, other), torch.from_numpy(session.run(None, {"input": other.numpy()})[0])) < 1e-5
    again, smaller = pruned(compact, x, seed=4)
    assert distance(call(again, other), call(smaller, other)) < 1e-5
