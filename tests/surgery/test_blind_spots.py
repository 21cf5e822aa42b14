"""What a certificate on copies and on one example would not see: other shapes, the host itself, training mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import Classifier, NoNorm, Residual, TwoConvs, conv, image
from tests.support.compare import call, distance, liven, pruned, random_gates
from tests.support.portrait import Portrait
from torch import Tensor, nn

import depl0
from depl0.surgery.record import record_of

pytestmark = pytest.mark.structures

# -- other shapes and arguments ----------------------------------------------------------------------------------------


class PadsOddSizes(TwoConvs):
    """A closed channel is 1, not 0, in the border of odd maps."""

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        if x.shape[-1] % 2:
            x = F.pad(x, (0, 1), value=1.0)
        return F.relu(self.two(x))


class SizedByWidth(TwoConvs):
    """Only large maps are divided by the number of channels."""

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(x / x.shape[1] if x.shape[-1] > 8 else x)


@pytest.mark.parametrize("build", [PadsOddSizes, SizedByWidth])
@pytest.mark.parametrize("batch", [1, 2])
def test_branches_on_shapes(build: type[nn.Module], batch: int) -> None:
    torch.manual_seed(0)
    gated, compact = pruned(liven(build(), image()), image(batch=batch))
    for other in (image(batch=1), image(batch=3), image(size=9), image(size=12, batch=1)):
        assert distance(call(gated, other), call(compact, other)) < 1e-5
    assert gated.plan.num_gates == (6 if build is SizedByWidth else 14)


class OptionalMask(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.norm = conv(3, 8), conv(8, 6), nn.BatchNorm2d(8)

    def forward(self, x: Tensor, normed: Tensor | None = None) -> Tensor:
        x = self.one(x)
        if normed is not None:
            x = torch.sigmoid(self.norm(x)) * normed
        return self.head(F.relu(self.two(x)).mean((2, 3)))


MASKED = (image(), torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def test_several_examples_cover_all_branches() -> None:
    torch.manual_seed(0)
    examples = [image(), MASKED]
    gated, compact = pruned(liven(OptionalMask(), image()), examples)
    for inputs in examples:
        assert distance(call(gated, inputs), call(compact, inputs)) < 1e-5
    assert "example 2" in gated.plan.covered and "example 2" in record_of(compact).certificate.covered


def test_plan_and_certificate_say_what_was_covered() -> None:
    class FixedSize(NoNorm):
        def features(self, x: Tensor) -> Tensor:
            assert x.shape[-1] == 8
            return super().features(x)

    gated, compact = pruned(FixedSize(), image(batch=1))
    assert gated.plan.covered == ("the example", "batch of 2", "training mode")
    assert gated.plan.refused == ("another size",)
    certificate = record_of(compact).certificate
    assert certificate.covered == gated.plan.covered and certificate.refused == ("another size",)
    assert str(gated.plan).endswith("verified on the example, batch of 2, training mode\nnot verified: another size")
    assert gated.plan.to_dict()["not_covered"] == ["another size"]


class FollowsSmallMaps(NoNorm):
    """Takes a smaller window once it has seen a small map, and keeps it (Hugging Face's Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 16

    def features(self, x: Tensor) -> Tensor:
        self.window = min(self.window, x.shape[-1])
        return super().features(x).unflatten(3, (-1, self.window)).amax(4)


def test_a_network_that_other_inputs_change_is_tried_on_the_example() -> None:
    gated, compact = pruned(FollowsSmallMaps(), image(size=16))
    assert distance(call(gated, image(size=16)), call(compact, image(size=16))) < 1e-5
    assert gated.plan.num_gates == 14 and gated.host.window == 16
    assert gated.plan.covered == ("the example", "training mode")
    assert gated.plan.refused == ("other batches and sizes (the network sets itself to the input that it is given)",)


# -- copies and the host -----------------------------------------------------------------------------------------------


class Bound(Classifier):
    """Something in it is bound to the object that was built first."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6)
        self.features_of: Callable[[Tensor], Tensor] = lambda x: F.relu(self.norm(self.one(x)))

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(self.features_of(x)))


@pytest.mark.parametrize("function", [depl0.plan, depl0.attach, depl0.cost])
def test_copies_that_reach_the_host_are_refused(function: Callable[..., Any]) -> None:
    host = Bound().train()
    portrait = Portrait(host)
    with pytest.raises(depl0.errors.InputError, match=r"uses one\.weight of the original(?s:.*)\nhint: a lambda"):
        function(host, image())
    portrait.check()


class Hooked(Classifier):
    """A hook that closes over self: the copy's hook writes into the original, and the copy reads what is old."""

    def __init__(self, shared: bool) -> None:
        super().__init__(6)
        self.one, self.two, self.kept = conv(3, 8), conv(8, 6), {}
        kept = self.kept

        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            if shared:
                kept["x"] = output.detach()
            else:
                self.last = output.detach()

        self.shared = shared
        self.one.register_forward_hook(hook)

    def features(self, x: Tensor) -> Tensor:
        y = F.relu(self.one(x))
        return F.relu(self.two(y)) * (self.kept["x"] if self.shared else self.last).mean().sigmoid()


@pytest.mark.parametrize("shared", [True, False])
def test_hooks_bound_to_the_host_are_refused(shared: bool) -> None:
    host = Hooked(shared)
    host(image())
    portrait, last = Portrait(host), host.kept["x"] if shared else host.last
    with pytest.raises(depl0.errors.InputError, match=r"writes into it \((Hooked\.last|a dict)|other outputs than the"):
        depl0.attach(host, image())
    portrait.check()
    assert (host.kept["x"] if shared else host.last) is last


def test_certificate_compares_with_the_host_itself() -> None:
    """What is bound only after attach is found by extract."""
    host = NoNorm()
    gated = depl0.attach(host, image()).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates))
    host.scale = 1.0
    host.one.register_forward_hook(lambda module, _, output: output * (2.0 if module is host.one else 1.0))
    with pytest.raises(depl0.errors.CertificateError, match="not with the network itself"):
        gated.extract()


@functools.lru_cache
def _grid(size: int) -> Tensor:
    return torch.linspace(0.0, 1.0, size)


class CachedOutside(TwoConvs):
    grid: Tensor | None = None

    def features(self, x: Tensor) -> Tensor:
        if CachedOutside.grid is None or len(CachedOutside.grid) != x.shape[-1]:
            CachedOutside.grid = torch.arange(x.shape[-1], dtype=x.dtype)
        return F.relu(self.two(F.relu(self.one(x)))) * _grid(x.shape[-1]).to(x.dtype) + CachedOutside.grid.to(x.dtype)


def test_caches_outside_of_the_network_hold_real_tensors() -> None:
    torch.manual_seed(0)
    _grid.cache_clear()
    CachedOutside.grid = None
    gated, compact = pruned(CachedOutside(), image())
    assert distance(call(gated, image()), call(compact, image())) < 1e-5
    assert type(_grid(8)) is Tensor and type(CachedOutside.grid) is Tensor
    gated.host.train()(image()).sum().backward()


class NormalisesInPlace(NoNorm):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x.sub_(0.5).div_(0.25))


def test_inputs_that_are_changed_in_place() -> None:
    example = image()
    _, compact = pruned(NormalisesInPlace(), example)
    assert torch.equal(example, image())
    depl0.cost(compact, example)
    assert torch.equal(example, image())


# -- training mode -----------------------------------------------------------------------------------------------------


class WidthInTraining(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        if self.training:
            x = x * (1 + 10 / x.shape[1])
        return F.relu(self.two(F.relu(x)))


def test_training_mode_is_compared() -> None:
    plan = depl0.plan(WidthInTraining(), image())
    assert [group.name for group in plan.groups] == ["two"]
    assert "its number of channels changes the values (at one)" in plan.unprunable()


class HardlyWrong(TwoConvs):
    """The number of channels counts, by less than float32 tells from rounding."""

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        return F.relu(self.two(x * (1 + 1e-5 * x.shape[1])))


def test_what_the_certificate_would_refuse_is_found_before_training() -> None:
    gated, compact = pruned(HardlyWrong(), image())
    assert [group.name for group in gated.plan.groups] == ["two"]
    assert record_of(compact).certificate.max_error < 1e-12


# -- loading -----------------------------------------------------------------------------------------------------------


class RandomBuffer(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(1, 3, 1, 1), persistent=False)

    def features(self, x: Tensor) -> Tensor:
        return super().features(x * self.noise)


def test_what_is_not_in_the_state_dict_is_missed_when_loading(tmp_path: Path) -> None:
    torch.manual_seed(0)
    _, compact = pruned(RandomBuffer(), image())
    depl0.save(compact, tmp_path)
    torch.manual_seed(1)
    with pytest.raises(
        depl0.errors.FormatError,
        match=r"gives other outputs than the one that was saved \(\d+% off(?s:.*)hint: .*ModuleList",
    ):
        depl0.load(tmp_path, RandomBuffer)
    torch.manual_seed(0)
    assert distance(call(compact, image()), call(depl0.load(tmp_path, RandomBuffer).eval(), image())) == 0
