"""Expected cost against brute force: every configuration of gates, cut and counted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import STRUCTURES, conv, image
from tests.support.compare import call, distance, pruned, same_cost
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import depl0
from depl0.app import models


class Tiny(nn.Module):
    """A residual stream with the same gates on both sides of a convolution, an inner group, a grouped reader."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2)
        self.stream, self.inner, self.back = conv(2, 2), conv(2, 3), conv(3, 2)
        self.deep, self.head = conv(2, 4, groups=2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(x + self.stream(x))
        x = x + self.back(F.relu(self.inner(x)))
        return self.head(F.relu(self.deep(x)).mean((2, 3)))


def cost_of(plan: depl0.analysis.Plan, model: nn.Module, gates: tuple[int, ...], inputs: Tensor) -> tuple[int, int]:
    """Count by hand what is left when exactly the open gates' positions stay: params, MACs of one image."""
    open_gates = [*map(bool, gates), True]  # the last stands for frozen positions
    left = {(name, dim): sum(open_gates[g] for g in numbers.tolist()) for (name, dim), numbers in plan.axes.items()}
    params = 0
    for name, parameter in model.named_parameters():
        sizes = [left.get((name, dim), size) for dim, size in enumerate(parameter.shape)]
        params += int(torch.tensor(sizes).prod())
    macs = 0
    for name in ("stem", "stream", "inner", "back", "deep", "head"):
        weight = model.get_parameter(f"{name}.weight")
        sizes = [left.get((f"{name}.weight", dim), size) for dim, size in enumerate(weight.shape)]
        places = 1 if name == "head" else inputs.shape[2] * inputs.shape[3]
        macs += int(torch.tensor(sizes).prod()) * places
    return params, macs


@pytest.mark.parametrize("row", [0, 1], ids=["params", "macs"])
def test_expected_cost_is_the_mean_over_all_configurations(row: int) -> None:
    torch.manual_seed(0)
    model, inputs = Tiny(), torch.randn(2, 1, 3, 3)
    gated = depl0.attach(model, inputs, generator="independent")
    count = gated.plan.num_gates
    assert [(g.name, g.size) for g in gated.plan.groups] == [("stem", 2), ("inner", 3)]
    start = torch.randn(count)
    gated.generator.start_from(start)

    p = gated.open_probability().double()
    mean = torch.zeros((), dtype=torch.float64)
    for gates in itertools.product((0, 1), repeat=count):
        weight = torch.stack([p[i] if gate else 1 - p[i] for i, gate in enumerate(gates)]).prod()
        mean = mean + weight * cost_of(gated.plan, model, gates, inputs)[row]

    penalty = gated.penalty(("params", "macs")[row], scale="count")
    assert penalty.item() == pytest.approx(mean.item(), rel=1e-6)
    parameters = list(gated.gate_parameters())
    wanted = torch.autograd.grad(mean, parameters)
    found = torch.autograd.grad(penalty, parameters)
    for a, b in zip(wanted, found, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6 * float(a.abs().max()))
    expected = gated.expected.rounded(gated.open_probability())
    assert (expected.params, expected.macs)[row] == round(mean.item())


def test_all_open_is_the_dense_cost() -> None:
    for name in ("Residual", "Depthwise", "Grouped", "GroupedTransposed", "Transposed", "CalledTwice", "Attention"):
        structure = STRUCTURES[name]
        gated = depl0.attach(structure.build(), structure.inputs, generator="independent", start=6.7)
        expected, dense = gated.expected.rounded(gated.open_probability()), depl0.cost(gated.host, structure.inputs)
        assert expected.params == pytest.approx(dense.params, rel=1e-3)
        assert expected.macs == pytest.approx(dense.macs, rel=1e-3)
        gated.fix_gates(torch.ones(gated.plan.num_gates))
        kept = gated.kept_cost()
        assert (kept.params, kept.macs) == (dense.params, dense.macs)


def test_groups_penalty_is_the_papers_sum() -> None:
    """Σ|g_k|π_k: a filter counts its own weights, whether or not their inputs are open."""
    gated = depl0.attach(STRUCTURES["NormAfterConv"].build(), image(), generator="independent")
    gated.generator.start_from(torch.linspace(-3, 3, gated.plan.num_gates))
    p = gated.open_probability()
    by_hand = p[:8].sum() * (3 * 9) + p[8:].sum() * (8 * 9)
    assert gated.penalty("groups", scale="count").item() == pytest.approx(by_hand.item(), rel=1e-6)
    whole = 8 * (3 * 9) + (gated.plan.num_gates - 8) * (8 * 9)
    assert gated.penalty("groups").item() == pytest.approx(by_hand.item() / whole, rel=1e-6)


def test_penalty_beside_outputs() -> None:
    gated = depl0.attach(STRUCTURES["NormAfterConv"].build(), image())
    gated(image())
    penalty = gated.penalty("macs")
    assert torch.equal(penalty, gated.penalty("macs"))


def test_penalty_is_exact_in_half_precision_networks() -> None:
    gated = depl0.attach(models.build("resnet20"), torch.randn(2, 3, 32, 32))
    before = {kind: gated.penalty(kind).item() for kind in ("params", "macs", "groups")}
    gated.bfloat16()
    assert next(gated.host.parameters()).dtype == torch.bfloat16
    assert {kind: gated.penalty(kind).item() for kind in before} == before
    with torch.autocast("cpu", torch.bfloat16):
        assert {kind: gated.penalty(kind).item() for kind in before} == before


def test_unknown_penalty_is_refused() -> None:
    gated = depl0.attach(STRUCTURES["NoNorm"].build(), image())
    with pytest.raises(
        depl0.errors.InputError,
        match="kind must be one of 'params', 'macs', 'groups', 'groups-k2', 'chain', got 'flops'",
    ):
        gated.penalty("flops")


def test_value_and_gradient_agree_with_autograd() -> None:
    gated = depl0.attach(Tiny(), torch.randn(2, 1, 3, 3))
    p = torch.rand(gated.plan.num_gates, requires_grad=True)
    for kind in ("params", "macs"):
        value, gradient = gated.expected.value_and_gradient(p.detach(), kind)
        wanted = gated.expected(p, kind)
        assert value.item() == pytest.approx(wanted.item(), rel=1e-6)
        assert torch.allclose(gradient, torch.autograd.grad(wanted, p)[0], rtol=1e-5)


class Mapped(nn.Module):
    """The recorder sees one row of what vmap runs on many."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.two(torch.vmap(lambda row: F.relu(self.one(row)))(x))))


class Complex(nn.Module):
    """A complex convolution is three real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(i, o, 3, dtype=torch.cfloat) for i, o in ((3, 8), (8, 5)))
        self.head = nn.Conv2d(5, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(torch.fft.fft2(x))).abs())


@pytest.mark.parametrize(("build", "inputs"), [(Mapped, torch.ones(2, 6)), (Complex, image(size=7))])
def test_kept_cost_is_that_of_the_compact_network_where_fewer_or_more_macs_are_recorded(
    build: type[nn.Module], inputs: Tensor
) -> None:
    gated, compact = pruned(build(), inputs, seed=1)
    assert same_cost(gated.kept_cost(), depl0.cost(compact, inputs)) and gated.plan.num_gates > 0
    assert distance(call(gated, inputs), call(compact, inputs)) < 1e-5


def test_penalty_is_the_sum_over_terms() -> None:
    """Few operators, however many layers: the value and gradient are those of the terms summed one by one."""
    structure = STRUCTURES["Residual"]
    gated = depl0.attach(structure.build(), structure.inputs, generator="independent").train()
    log_alpha = torch.randn(gated.plan.num_gates, dtype=torch.float64, requires_grad=True)
    p = torch.sigmoid(log_alpha)
    always = torch.cat([p, torch.ones(1, dtype=torch.float64)])  # -1 is a position without a gate
    total = torch.zeros((), dtype=torch.float64)
    for use in gated.plan.uses:
        out = gated.plan.axes.get(use.out_axis, torch.full((use.out_size,), -1))
        into = torch.full((1,), -1)
        if use.in_axis is not None:
            into = gated.plan.axes.get(use.in_axis, torch.full((use.in_size,), -1))
        pairs = always[out][:, None] * always[into]
        same = (out[:, None] == into) & (into >= 0)
        total = total + use.macs_per_pair * torch.where(same, always[into].expand_as(pairs), pairs).sum()
    expected = gated.expected.double()
    found = expected(p, "macs")
    assert found.item() == pytest.approx(total.item(), rel=1e-12)
    wanted = torch.autograd.grad(total, log_alpha, retain_graph=True)[0]
    assert torch.allclose(torch.autograd.grad(found, log_alpha)[0], wanted, rtol=1e-10)

    class Operators(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    with Operators() as operators:
        expected(p.detach().requires_grad_(), "macs").backward()
    assert operators.count <= 50  # views included
