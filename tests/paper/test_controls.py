"""The controls take away what they say, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from depl0.gates.generators.fc import FC
from depl0.gates.generators.presets import PRESETS

sys.path.append(str(Path(__file__).parents[2] / "reproduce" / "claims"))

from controls import CONTROLS

SIZES = (3, 5, 2, 4, 6)


def make(name: str, direction: str = "forward", sizes: tuple[int, ...] = SIZES) -> Any:
    rng = torch.Generator().manual_seed(0)
    return (CONTROLS | {"fc": FC})[name](sizes, direction, PRESETS["reference"], rng, "log_alpha")


@pytest.mark.parametrize("name", ["fc-const", "fc-frozen", "independent-fc"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_starts_where_fc_does(name: str, direction: str) -> None:
    torch.testing.assert_close(make(name, direction)(), make("fc", direction)(), rtol=0, atol=1e-5)


def test_const_has_the_steps_of_fc_and_no_input_from_other_groups() -> None:
    control, fc = make("fc-const"), make("fc")
    for generator in (control, fc):
        generator()[-SIZES[-1] :].sum().backward()
    last = len(SIZES) - 1
    torch.testing.assert_close(control.layers[last].weight.grad, fc.layers[last].weight.grad)
    assert fc.layers[0].weight.grad.abs().sum() > 0 and control.layers[0].weight.grad.abs().sum() == 0
    with torch.no_grad():
        control.bias(0).sub_(5.0)
    assert torch.equal(control()[SIZES[0] :], make("fc-const")()[SIZES[0] :])


def test_frozen_trains_biases_alone_and_independent_fc_one_gate_at_a_time() -> None:
    assert sorted(p.dim() for p in make("fc-frozen").parameters()) == [1] * len(SIZES)
    control = make("independent-fc")
    control()[4].backward()
    (parameter,) = control.parameters()
    assert parameter.grad.nonzero().tolist() == [[4]]
