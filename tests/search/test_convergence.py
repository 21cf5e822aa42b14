"""A search has converged when its gates have come to rest, and not when they have not begun to move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import depl0
from depl0.gates.generators.independent import Independent
from depl0.search.state import Convergence
from tests.networks.tiny import tiny_gated

pytestmark = pytest.mark.usefixtures("remembered_plans")

STEPS = 100


def drive(move: Callable[[int], Tensor], preset: str = "default") -> Convergence | None:
    """Let a search without a budget go on while something else moves its gates."""
    gated = tiny_gated(generator="independent")
    generator = gated.generator
    assert isinstance(generator, Independent)
    with torch.no_grad():
        generator.log_alpha.copy_(move(0))
    search = depl0.Search(gated, STEPS, cut="never", first_scores="none", converged_after=20 / STEPS)
    for step in range(STEPS):
        search.step()
        with torch.no_grad():
            generator.log_alpha.copy_(move(step))
    return search.convergence


def test_gates_that_close_early_and_stay() -> None:
    found = drive(lambda step: torch.tensor([3.0] * 7 + [3.0 if step < 10 else -3.0] * 7))
    assert found is not None
    assert 10 <= found.since <= 14 and found.step <= 36


def test_gates_that_were_closed_from_the_start_are_no_result() -> None:
    assert drive(lambda step: torch.tensor([3.0] * 7 + [-3.0] * 7)) is None
