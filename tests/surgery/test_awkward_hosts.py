"""Networks that write into themselves, share themselves with their copies, or return what cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import Classifier, NoNorm, conv, image
from tests.support.compare import call, distance, liven, pruned
from tests.support.portrait import Portrait
from torch import Tensor, nn

import depl0

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


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("norm", "why"),
    [
        (torch.nn.utils.parametrizations.orthogonal, "computed, not stored"),
        (torch.nn.utils.spectral_norm, "computed, not stored: spectral norm is of the whole weight"),
    ],
)
def test_weights_that_are_computed(norm: Callable[[nn.Module], nn.Module], why: str) -> None:
    """They are frozen; made permanent, as the hint says, they are pruned."""
    host = nn.Sequential(norm(conv(3, 8)), nn.ReLU(), norm(conv(8, 4)))
    with pytest.raises(depl0.errors.NothingToPruneError, match=f"12 channels: the layer's weight is {why}\n") as error:
        depl0.plan(host, image())
    assert "hint: store the weights as they are" in str(error.value)
    for layer in (host[0], host[2]):
        if norm is torch.nn.utils.spectral_norm:
            torch.nn.utils.remove_spectral_norm(layer)
        else:
            torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    gated, compact = pruned(host, image())
    assert gated.plan.num_gates == 8 and distance(call(gated, image()), call(compact, image())) < 1e-5
