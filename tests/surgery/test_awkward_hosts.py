"""Awkward networks: they write into themselves, share themselves with copies, or have habits that once failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import Classifier, NoNorm, conv, image
from tests.support.compare import call, distance, liven, pruned, random_gates
from tests.support.portrait import Portrait
from torch import Tensor, nn

import depl0
from depl0.host.inputs import output_tensors

pytestmark = pytest.mark.structures

# -- the host is not written to ----------------------------------------------------------------------------------------


class ScalesItsWeight(NoNorm):
    """Brings its weight to length one, in place, at every pass."""

    def features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.one.weight.div_(self.one.weight.norm())
        return super().features(x)


class MergesInEvaluation(NoNorm):
    """Adds an adapter to its weight in evaluation mode, and takes it out again for training (LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter, self.merged = nn.Parameter(torch.randn(8, 3, 3, 3)), False

    def train(self, mode: bool = True) -> MergesInEvaluation:
        if mode == self.merged:
            self.one.weight.data.add_(self.adapter, alpha=-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def features(self, x: Tensor) -> Tensor:
        weight = self.one.weight if self.merged else self.one.weight + self.adapter
        return F.relu(self.two(F.relu(F.conv2d(x, weight, self.one.bias, padding=1))))


class SharesATeacher(NoNorm):
    """A part of it says that it need not be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.two = _Shared(8, 6, 3, padding=1)


class _Shared(nn.Conv2d):
    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        return self


@pytest.mark.parametrize("function", [depl0.plan, depl0.attach, depl0.cost])
def test_networks_that_write_into_their_parameters(function: Callable[..., Any]) -> None:
    host = ScalesItsWeight().train()
    portrait, versions = Portrait(host), [parameter._version for parameter in host.parameters()]
    function(host, image(), **({"rng": torch.Generator()} if function is depl0.attach else {}))
    portrait.check()
    assert versions == [parameter._version for parameter in host.parameters()]


def test_a_mode_that_changes_parameters_is_refused() -> None:
    host = MergesInEvaluation()
    portrait = Portrait(host)
    with pytest.raises(
        depl0.errors.InputError, match=r"train\(\) and eval\(\) .* change one\.weight(?s:.*)\nhint: merge"
    ):
        depl0.attach(host, image())
    portrait.check()
    assert not host.merged


@pytest.mark.parametrize("function", [depl0.attach, depl0.cost])
def test_copies_that_are_none_are_refused(function: Callable[..., Any]) -> None:
    host = SharesATeacher().train()
    portrait = Portrait(host)
    with pytest.raises(depl0.errors.InputError, match=r"the copy shares .* with it(?s:.*)__deepcopy__"):
        function(host, image())
    portrait.check()


def test_networks_without_values_are_refused() -> None:
    with pytest.raises(depl0.errors.InputError, match=r"head\.weight is on the meta device(?s:.*)hint: .*to_empty"):
        depl0.plan(NoNorm().to("meta"), image().to("meta"))
    with pytest.raises(depl0.errors.InputError, match=r"0\.weight has no shape yet(?s:.*)hint: run the network once"):
        depl0.plan(nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.LazyConv2d(4, 3)), image())


# -- outputs -----------------------------------------------------------------------------------------------------------


class ReturnsNothing(NoNorm):
    def forward(self, x: Tensor) -> None:
        super().forward(x)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(depl0.errors.InputError, match=r"returns no tensor(?s:.*)hint: return"):
        depl0.attach(ReturnsNothing(), image())


# -- complex numbers and mixed precision -------------------------------------------------------------------------------


class ReturnsComplex(NoNorm):
    """The width is seen in the imaginary part alone."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        y = self.head(F.relu(self.two(x)).mean((2, 3)))
        return torch.complex(y, y * x.shape[1])


def test_imaginary_parts_are_compared() -> None:
    plan = depl0.plan(ReturnsComplex(), image())
    assert [group.name for group in plan.groups] == ["two"]


class OneLayerInBfloat16(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(8, 6).bfloat16()

    def features(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(x)).bfloat16()).float()


def test_networks_that_want_some_precision() -> None:
    """Both kinds of cuts compare in a precision that the network takes."""
    inputs = image()
    gated, compact = pruned(OneLayerInBfloat16(), inputs)
    before = call(gated, inputs)
    assert distance(before, call(compact, inputs)) < 0.02 and gated.plan.num_gates == 14
    gated.remove(gated.evaluation_gates() == 0)
    gated.cut()
    assert distance(before, call(gated, inputs)) < 0.02 and gated.host.one.out_channels < 8
    assert gated.snapshot().depends_on_input(torch.ones(gated.plan.num_gates))


# -- what hides, and what is frozen ------------------------------------------------------------------------------------


class ZeroHead(NoNorm):
    """A head that starts at zero hides that the width changes the values."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(x / x.shape[1])


def test_nothing_hides_behind_a_zero() -> None:
    assert [group.name for group in depl0.plan(ZeroHead(), image()).groups] == ["two"]


class Checked(nn.Module):
    """Checks the width before it does anything else (diffusers)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.conv = width, conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.width:
            raise ValueError(f"expected {self.width} channels")
        return self.conv(x)


class ChecksWidths(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.stem, self.checked, self.last = conv(3, 8), nn.ModuleList([Checked(8), Checked(8)]), conv(8, 6)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.checked:
            x = x + F.relu(block(x))
        return F.relu(self.last(x))


def test_a_module_that_checks_its_input_freezes_that_input_alone() -> None:
    gated, compact = pruned(liven(ChecksWidths(), image()), image())
    assert distance(call(gated, image()), call(compact, image())) < 1e-5
    assert [group.name for group in gated.plan.groups] == ["last"]
    frozen = {
        reason: count for reason, count in gated.plan.unprunable().items() if "size is fixed in the code" in reason
    }
    assert sum(frozen.values()) == 24


# -- ordinary habits ---------------------------------------------------------------------------------------------------


def same(gated: nn.Module, compact: nn.Module, inputs: Any) -> bool:
    left, right = output_tensors(call(gated, inputs)), output_tensors(call(compact, inputs))
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(left, right, strict=True))


class TwoNames(Classifier):
    """One convolution is there by its own name, and again in a sequence."""

    def __init__(self) -> None:
        super().__init__(6)
        self.conv1 = conv(3, 8)
        self.body = nn.Sequential(self.conv1, nn.ReLU(), conv(8, 6), nn.ReLU())

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_a_module_with_two_names(tmp_path: Path) -> None:
    gated, compact = pruned(TwoNames(), image())
    assert same(gated, compact, image()) and gated.plan.num_gates == 14
    assert compact.conv1 is compact.body[0] and compact.conv1.out_channels < 8
    assert distance(call(compact, image()), call(depl0.load(depl0.save(compact, tmp_path), TwoNames), image())) == 0
    gated.fix_gates(torch.cat([torch.zeros(8), torch.ones(6)]))
    assert same(gated, gated.extract(remove_blocks=True).eval(), image())


def closed_one_by_one(model: nn.Module, inputs: Tensor) -> int:
    gated = depl0.attach(liven(model, inputs), inputs).eval()
    for group in gated.plan.groups:
        gates = random_gates(gated.plan.num_gates, 4).clamp_min(0.1)
        gates[group.gates] = 0
        gated.fix_gates(gates)
        compact = gated.extract(remove_blocks=True).eval()
        assert distance(call(gated, inputs), call(compact, inputs)) < 1e-5
    return len(gated.plan.groups)


def test_blocks_whose_weight_is_read_stay() -> None:
    """The fast path of torch's transformer looks at the weights of its layers."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    assert closed_one_by_one(layer, torch.randn(2, 5, 8)) == 3  # queries and keys, values, the hidden layer


class InPlaceAfterRemoval(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.down = conv(3, 8), conv(8, 6), conv(3, 6)

    def features(self, x: Tensor) -> Tensor:
        y = self.two(F.relu(self.one(x)))
        y += self.down(x)
        return F.relu(y, inplace=True)


def test_a_constant_may_be_written_to() -> None:
    assert closed_one_by_one(InPlaceAfterRemoval(), image()) == 2


# -- what is kept from the last pass -----------------------------------------------------------------------------------


class KeepsItsMaps(NoNorm):
    def features(self, x: Tensor) -> Tensor:
        self.maps = [F.relu(self.one(x))]
        return self.two(self.maps[0])


def test_networks_that_keep_results() -> None:
    gated = depl0.attach(KeepsItsMaps(), image())
    gated.train()(image()).sum().backward()
    gated.fix_gates(random_gates(gated.plan.num_gates))
    assert same(gated.eval(), gated.extract().eval(), image())
    gated.train()(image())
    gated.remove(random_gates(gated.plan.num_gates) == 0)
    gated.cut()


# -- inputs and outputs ------------------------------------------------------------------------------------------------


@dataclass
class Scores:
    scores: Tensor
    extra: dict[str, Tensor]


class Result:
    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": lambda y: Scores(y, {"mean": y.mean()}),
    "object": Result,
}


class Returns(NoNorm):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return OUTPUTS[self.kind](super().forward(x))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_any_class(kind: str, tmp_path: Path) -> None:
    gated, compact = pruned(Returns(kind), image())
    assert same(gated, compact, image()) and gated.plan.num_gates == 14
    assert type(call(compact, image())) is type(OUTPUTS[kind](torch.ones(1)))
    assert same(compact, depl0.load(depl0.save(compact, tmp_path), lambda: Returns(kind)).eval(), image())


# -- only a part is frozen ---------------------------------------------------------------------------------------------


class LayerDrop(Classifier):
    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.blocks = conv(3, 8), nn.ModuleList([conv(8, 8) for _ in range(3)])

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.training and float(torch.rand(())) < 0.25:
                continue
            x = x + F.relu(block(x))
        return x


def test_a_part_is_frozen_and_not_the_whole() -> None:
    gated, compact = pruned(LayerDrop(), image())
    assert same(gated, compact, image()) and gated.plan.num_gates == 8


class TakesTheShapeOfItsInput(nn.Module):
    def __init__(self, stem: int) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.head = conv(3, stem), conv(stem, 8), conv(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(F.relu(self.stem(x))))
        return self.head(F.relu(self.two(x)).reshape(x.shape).mean((2, 3)))


@pytest.mark.parametrize("stem", [4, 7])
def test_a_trial_does_not_pass_because_two_widths_are_equal_by_chance(stem: int) -> None:
    plan = depl0.plan(TakesTheShapeOfItsInput(stem), image())
    assert {group.name for group in plan.groups} == {"stem"}


# -- what counts is reported -------------------------------------------------------------------------------------------


def test_the_least_cost_is_that_of_the_smallest_network() -> None:
    gated = depl0.attach(NoNorm(), image()).eval()
    gated.fix_gates(torch.zeros(gated.plan.num_gates))
    counted = depl0.cost(gated.extract(), image())
    assert gated.plan.least_cost == (counted.params, counted.macs)
    assert gated.plan.least("macs") == counted.macs / gated.dense_cost.macs < 0.2
    assert f"minimum reachable: {gated.plan.least():.1%} of the MACs" in str(gated.plan)
    assert gated.plan.to_dict()["least_params"] == counted.params / gated.dense_cost.params
