"""Branches on sizes, wherever the code has them: both sides are compared, or the certificate names the other one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import Classifier, conv, image
from tests.support.compare import call, distance, liven, pruned
from torch import Tensor, nn

import depl0

pytestmark = pytest.mark.structures


class Branch(Classifier):
    """Inputs on one side of some condition go another way, where the number of channels counts."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.pool = conv(3, 8), conv(8, 6), nn.AvgPool2d(2)
        self.limits = {"width": 20}

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        return F.relu(self.two(x * x.shape[1] if self.other(x) else x))

    def other(self, x: Tensor) -> bool:
        raise NotImplementedError


def _is_large(x: Tensor) -> bool:
    return max(x.shape[2:]) > 20


class Helper(Branch):
    def other(self, x: Tensor) -> bool:
        return _is_large(x)


class Pixels(Branch):
    def other(self, x: Tensor) -> bool:
        x = self.pool(x)
        return x.shape[2] * x.shape[3] > 100


class Limit(Branch):
    def other(self, x: Tensor) -> bool:
        return x.size(-1) > self.limits["width"]


class FifthBatch(Branch):
    def other(self, x: Tensor) -> bool:
        return x.shape[0] % 5 == 0


class Wide(Branch):
    def other(self, x: Tensor) -> bool:
        return x.shape[3] / x.shape[2] > 1.5


class Loop(Branch):
    def other(self, x: Tensor) -> bool:
        return sum(1 for _ in range(x.shape[2] // 4)) > 2


class Nested(Branch):
    """The second condition is only asked on the other side of the first."""

    def other(self, x: Tensor) -> bool:
        return x.shape[2] > 12 and x.shape[3] % 7 == 0


def shaped(batch: int, height: int, width: int) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(2))


HOSTS = {
    Helper: shaped(1, 24, 8),
    Pixels: shaped(1, 30, 24),
    Limit: shaped(1, 21, 21),
    FifthBatch: shaped(5, 8, 8),
    Wide: shaped(1, 8, 16),
    Loop: shaped(1, 12, 8),
    Nested: shaped(1, 14, 14),
}


@pytest.mark.parametrize("build", HOSTS)
def test_both_sides_of_a_condition_are_compared(build: type[Branch]) -> None:
    torch.manual_seed(0)
    gated, compact = pruned(liven(build(), image()), image())
    for other in (image(), HOSTS[build]):
        assert distance(call(gated, other), call(compact, other)) < 1e-5


def test_a_side_that_is_too_large_is_named_when_the_certificate_is_printed() -> None:
    class Huge(Branch):
        def other(self, x: Tensor) -> bool:
            return x.shape[-1] > 5000

    gated, compact = pruned(Huge(), image())
    (refused,) = depl0.info(compact).certificate.refused
    assert refused.startswith("the other side of `") and refused.endswith("as size 8x5001 is too large to try")
    assert f"  not verified {refused}" in str(depl0.info(compact)) and gated.plan.refused == (refused,)


def test_sizes_stay_numbers_outside_of_a_pass() -> None:
    class Keeps(Branch):
        def other(self, x: Tensor) -> bool:
            self.kept = {x.shape[2]: round(x.shape[3] / 3), "both": x.shape[2:]}
            return len(x) > 3 and isinstance(range(len(x)), range)

    host, lengths = Keeps(), (len, range)
    gated, _ = pruned(host, image())
    assert (len, range) == lengths and not hasattr(host, "kept") and "batch of 4, size 9x11" in gated.plan.covered


def test_code_that_wants_plain_numbers_is_run_with_them_and_the_certificate_says_so() -> None:
    class Strict(Branch):
        def other(self, x: Tensor) -> bool:
            if type(x.shape[0]) is not int:
                raise TypeError("a number, please")
            return False

    _, compact = pruned(Strict(), image())
    assert depl0.info(compact).certificate.refused == (
        "other sizes than those tried (its code takes no sizes that can be followed)",
    )
