"""log α within a step: the penalty uses those of the call before it."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import depl0
from depl0.gated import GatedModel


@pytest.fixture
def gated() -> GatedModel:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 3))
    return depl0.attach(host, torch.zeros(1, 1, 8, 8), generator="fc").train()


def gradients(gated: GatedModel) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in gated.gate_parameters() if parameter.grad is not None]


def expected(gated: GatedModel) -> Tensor:
    """Return the penalty of the current parameters, from a copy that has not been called."""
    return copy.deepcopy(gated).penalty("macs").detach()


def step(gated: GatedModel, with_call: bool) -> tuple[Tensor, list[Tensor]]:
    gated.zero_grad()
    outputs = gated(torch.ones(1, 1, 8, 8)) if with_call else torch.zeros(1)
    penalty = gated.penalty("macs")
    (penalty + 0 * outputs.sum()).backward()
    return penalty.detach(), gradients(gated)


def test_value_and_gradient_are_those_of_a_penalty_alone(gated: GatedModel) -> None:
    value, gradient = step(gated, with_call=True)
    alone, gradient_alone = step(gated, with_call=False)
    assert torch.equal(value, alone) and len(gradient) == len(gradient_alone) > 0
    for one, other in zip(gradient, gradient_alone, strict=True):
        torch.testing.assert_close(one, other)


def update_in_place(gated: GatedModel) -> None:
    torch.optim.SGD(gated.gate_parameters(), lr=1.0).step()


def load(gated: GatedModel) -> None:
    gated.load_state_dict({name: value + 0.3 for name, value in gated.state_dict().items()})


@pytest.mark.parametrize("change", [update_in_place, load])
def test_is_computed_again_after_a_change(gated: GatedModel, change: object) -> None:
    assert callable(change)
    step(gated, with_call=False)  # gives the optimizer gradients
    gated(torch.ones(1, 1, 8, 8))
    before = gated.penalty("macs").detach()
    change(gated)
    after = gated.penalty("macs").detach()
    assert after != before and torch.equal(after, expected(gated))


def test_moves_with_the_threshold_and_with_removed_gates() -> None:
    host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
    gated = depl0.attach(host, torch.zeros(1, 1, 8, 8), generator="fc", budget=0.5).train()
    gated(torch.ones(1, 1, 8, 8))
    before, threshold = gated.penalty("macs").detach(), gated.threshold
    assert threshold is not None
    threshold.advance(1.0, ramp=0.0)
    gated.follow_budget()
    assert (moved := gated.penalty("macs").detach()) != before and torch.equal(moved, expected(gated))
    gated(torch.ones(1, 1, 8, 8))
    gated.remove(torch.arange(8) < 4)
    assert gated.penalty("macs") < moved
    gated.cut()
    assert torch.equal(gated.penalty("macs").detach(), expected(gated))


def test_the_gradient_is_there_after_a_call_without_gradients(gated: GatedModel) -> None:
    with torch.no_grad():
        gated(torch.ones(1, 1, 8, 8))
    gated.penalty("macs").backward()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(gated)) and gradients(gated)


class Operators(TorchDispatchMode):
    """Lists the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_penalty_adds_few_operators_and_never_waits_for_the_host(gated: GatedModel) -> None:
    counts = []
    for weight in (None, 0.1):
        gated.zero_grad()
        with Operators() as operators:
            loss = gated(torch.ones(1, 1, 8, 8)).mean()
            (loss if weight is None else loss + weight * gated.penalty("macs")).backward()
        assert "aten._local_scalar_dense.default" not in operators.names  # .item()
        counts.append(len(operators.names))
    assert 0 < counts[1] - counts[0] <= 40
