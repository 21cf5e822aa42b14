"""Norms that count removed channels: the formula, training on, files and deployment."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from tests.networks.streams import ImageStream, ResponseNorm, RmsByHand, RmsInFloat, RmsLessOne
from tests.networks.structures import image
from tests.support.compare import call, distance, liven, pruned, random_gates
from torch import Tensor, nn

import depl0
from depl0.export import export_onnx
from depl0.export.program import capture
from depl0.replacements.norm import CountedNorm, NormSpec, recognise

pytestmark = pytest.mark.structures

WIDTH, KEPT = 10, torch.tensor([0, 3, 4, 8])
NORMS = {
    "layer": (lambda: nn.LayerNorm(WIDTH), (2, 5, WIDTH), -1),
    "layer, no bias": (lambda: nn.LayerNorm(WIDTH, bias=False), (2, 5, WIDTH), -1),
    "rms": (lambda: nn.RMSNorm(WIDTH, eps=0.01), (2, 5, WIDTH), -1),
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


def test_autocast_gives_what_torchs_norm_gives() -> None:
    norm = nn.LayerNorm(WIDTH)
    module = CountedNorm(norm, NormSpec("layer", -1, WIDTH, norm.eps, "weight", "bias"))
    x = torch.randn(3, WIDTH).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype == norm(x).dtype
        assert distance(norm(x), module(x)) < 1e-2


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


def test_plan_says_what_takes_the_place_of_norms() -> None:
    plan = depl0.plan(SmallStream(), torch.randn(2, 5, 6))
    assert "2 norms over all channels still count removed channels, as zeros, in the compact network" in str(plan)
    assert plan.to_dict()["replaced"] == {"norm": ["norm", "last"]}


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


def test_damaged_description_of_a_norm(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 6)
    folder = depl0.save(pruned(SmallStream(), x)[1], tmp_path)
    header = json.loads((folder / "compact.json").read_text())
    header["replaced"]["norm"]["form"] = "other"
    (folder / "compact.json").write_text(json.dumps(header))
    with pytest.raises(depl0.errors.FormatError, match=r"is damaged: ValueError .*describes no norm"):
        depl0.load(folder, SmallStream)
