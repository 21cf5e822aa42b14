"""A network that becomes smaller while it trains goes on as if the closed gates had only been set to zero."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.networks.structures import STRUCTURES, image
from tests.support.compare import call, cast, distance, flat, liven
from torch import Tensor, nn

import depl0
from depl0.app.models import resnet20
from depl0.host.inputs import ExampleInputs
from depl0.surgery.extraction import Shrunk, carry_over
from depl0.surgery.record import record_of

NETWORKS = ("NormAfterConv", "Concat", "Grouped", "SqueezeExcite", "TiedWeights")
EPS = 1e-3
"""the gradient of a bias before a norm is nothing but rounding, and must not be blown up"""
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, eps=EPS),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, eps=EPS),
}


class Training:
    """A gated network in float64 with both optimizers; every step is a function of its number."""

    def __init__(self, model: nn.Module, inputs: Any, optimizer: str, **options: Any) -> None:
        torch.manual_seed(0)
        rng = torch.Generator().manual_seed(0)
        self.gated = depl0.attach(liven(model, inputs), inputs, rng=rng, **options).double().train()
        self.inputs = cast(inputs, torch.float64)
        self.weights = OPTIMIZERS[optimizer](list(self.gated.weight_parameters()))
        self.gates = torch.optim.Adam(list(self.gated.gate_parameters()), lr=0.01)
        self.done = 0

    def step(self, count: int) -> None:
        for _ in range(count):
            torch.manual_seed(self.done)
            batch = ExampleInputs.of(self.inputs).map_tensors(lambda t: torch.randn(4, *t.shape[1:], dtype=t.dtype))
            if self.gated.threshold is not None:
                self.gated.threshold.advance(0.1 * self.done, 0.7)
                self.gated.follow_budget()
            outputs = flat(self.gated(*batch.args, **batch.kwargs))
            loss = (outputs - torch.randn(outputs.shape, dtype=outputs.dtype)).square().mean()
            if self.gated.threshold is None:
                loss = loss + 1e-5 * self.gated.penalty("macs", scale="count")
            self.weights.zero_grad()
            self.gates.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.gated.weight_parameters(), 1.0)
            self.weights.step()
            self.gates.step()
            self.done += 1

    def shrink(self) -> Shrunk:
        shrunk = self.gated.cut()
        carry_over(self.weights, shrunk)
        return shrunk


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, tied ones under their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def third(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 0.35


def assert_same(large: Training, small: Training, kept: Callable[[str, Tensor], Tensor]) -> None:
    """Weights, statistics, momentum and generator agree wherever the smaller network still has them."""
    of_large, of_small = tensors(large.gated.host), tensors(small.gated.host)
    for name, found in of_small.items():
        wanted = kept(name, of_large[name])
        assert found.shape == wanted.shape
        assert torch.allclose(found.double(), wanted.double(), rtol=1e-9, atol=1e-11), name
    for name, parameter in small.gated.host.named_parameters():
        state = large.weights.state[large.gated.host.get_parameter(name)]
        assert state.keys() == small.weights.state[parameter].keys() and state
        for key, value in small.weights.state[parameter].items():
            wanted = kept(name, state[key]) if state[key].dim() else state[key]
            assert torch.allclose(value.double(), wanted.double(), rtol=1e-8, atol=1e-11), (name, key)
    for a, b in zip(large.gated.gate_parameters(), small.gated.gate_parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)
    assert torch.allclose(large.gated.log_alpha(), small.gated.log_alpha(), rtol=1e-9, atol=1e-11)


def positions_of(gated: depl0.GatedModel) -> Callable[[str, Tensor], Tensor]:
    """How any tensor of the dense network is cut to the present one."""
    record = record_of(gated.host)
    assert record is not None

    def kept(name: str, tensor: Tensor) -> Tensor:
        for (entry, dim), keep in record.positions.items():
            if entry == name:
                tensor = tensor.index_select(dim, keep)
        return tensor

    return kept


def train_both(large: Training, small: Training) -> None:
    for training in (large, small):
        training.step(3)
    gone = third(large.gated.plan.num_gates)
    before = small.gated.log_alpha()
    large.gated.remove(gone)
    small.gated.remove(gone)
    weights = sum(p.numel() for p in small.gated.weight_parameters())
    small.shrink()
    assert torch.equal(before, small.gated.log_alpha())
    assert sum(p.numel() for p in small.gated.weight_parameters()) < weights
    for training in (large, small):
        training.step(3)
    group = large.gated.plan.groups[0]
    gone = third(large.gated.plan.num_gates, seed=1)
    gone[group.gates] = True  # one channel of it stays, at zero
    large.gated.remove(gone)
    small.gated.remove(gone)
    small.shrink()
    for training in (large, small):
        training.step(3)


@pytest.mark.parametrize("network", NETWORKS)
def test_training_goes_on_as_with_gates_at_zero(network: str) -> None:
    structure = STRUCTURES[network]
    options = {"generator": "independent", "start": 1.0}
    large = Training(structure.build(), structure.inputs, "sgd", **options)
    small = copy.deepcopy(large)
    train_both(large, small)
    assert_same(large, small, positions_of(small.gated))
    compare_results(large, small)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_carried_over(optimizer: str) -> None:
    model = STRUCTURES["Residual"].build()
    large = Training(model, image(), optimizer, generator="fc", budget=0.6)
    small = copy.deepcopy(large)
    train_both(large, small)
    assert_same(large, small, positions_of(small.gated))
    compare_results(large, small)


def test_a_whole_resnet_under_a_budget() -> None:
    torch.manual_seed(0)
    model = resnet20(num_classes=4)
    large = Training(model, torch.randn(1, 3, 8, 8), "sgd", groups="all", budget=0.5)
    small = copy.deepcopy(large)
    train_both(large, small)
    assert_same(large, small, positions_of(small.gated))
    compare_results(large, small)


def compare_results(large: Training, small: Training) -> None:
    """What is asked of both networks is answered alike, and both end in the same compact network."""
    a, b = large.gated.eval(), small.gated.eval()
    assert distance(call(a, large.inputs), call(b, small.inputs)) < 1e-9
    assert torch.equal(a.removed, b.removed)
    assert not b.evaluation_gates()[b.removed].any() and not b.open_probability()[b.removed].any()
    assert (a.expected.rounded(a.open_probability()), a.kept_cost()) == (
        b.expected.rounded(b.open_probability()),
        b.kept_cost(),
    )
    assert b.dense_cost == a.dense_cost
    assert b.snapshot().cost(~b.removed) == depl0.costs.Cost(
        *(getattr(depl0.cost(b.host, b.example), k) for k in ("params", "macs"))
    )
    compact, other = a.extract(), b.extract()
    assert distance(call(compact, large.inputs), call(other, large.inputs)) < 1e-9
    assert {n: t.shape for n, t in compact.state_dict().items()} == {n: t.shape for n, t in other.state_dict().items()}
    records = record_of(compact), record_of(other)
    assert records[0].dense_shapes == records[1].dense_shapes
    assert records[0].dense == records[1].dense


def test_a_budget_spends_nothing_on_gates_that_are_gone() -> None:
    gated = depl0.attach(liven(resnet20(num_classes=4), image()), image(), generator="independent", budget=0.2)
    gated.start_from(torch.randn(gated.plan.num_gates, generator=torch.Generator().manual_seed(0)))
    assert gated.threshold is not None
    gated.threshold.advance(1.0, 0.5)
    gone = third(gated.plan.num_gates)
    gated.remove(gone)
    gated.threshold.solve(gated.generator().detach())
    assert gated.expected.rounded(gated.open_probability()).macs == pytest.approx(0.2 * gated.dense_cost.macs, rel=1e-3)
    gated.train()(image(batch=2)).sum().backward()
    (scores,) = gated.gate_parameters()
    assert not scores.grad.flatten()[gone].any() and scores.grad.flatten()[~gone].any()


def test_the_former_host_is_left_alone() -> None:
    model = liven(STRUCTURES["Residual"].build(), image())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gated = depl0.attach(model, image())
    gated.remove(third(gated.plan.num_gates))
    gated.cut()
    assert gated.host is not model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_gate_that_is_gone_cannot_be_opened() -> None:
    gated = depl0.attach(STRUCTURES["Residual"].build(), image())
    gone = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    gone[2] = True
    gated.remove(gone)
    with pytest.raises(depl0.errors.GateError, match=r"gate 2 \(group .*\) was closed for good"):
        gated.fix_gates(torch.ones(gated.plan.num_gates))
    gated.fix_gates((~gone).float())
    with pytest.raises(depl0.errors.GateError, match="True or False"):
        gated.remove(gone.float())
