"""Costs against torch's own counter and by hand; expected costs against brute force over all gates."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import STRUCTURES, conv, image
from tests.support.compare import call
from torch import Tensor, nn
from torch.backends.mkldnn import flags as mkldnn_flags
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import depl0
from depl0.app import models
from depl0.search.freezing import freeze_network

MORE_THAN_TORCH = {"ComputedWeight": 384}
"""MACs that torch's counter takes for free: the matrix-vector products of spectral norm"""


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("name", STRUCTURES)
def test_cost_agrees_with_the_flop_counter(name: str) -> None:
    model, inputs = STRUCTURES[name].build().eval(), STRUCTURES[name].inputs
    counted = depl0.cost(model, inputs)
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # torch's counter does not see inside fused layers
    try:
        counting = FlopCounterMode(display=False)
        with counting as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad(), mkldnn_flags(enabled=False):
            call(model, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    assert 2 * (counted.macs * counted.images - MORE_THAN_TORCH.get(name, 0)) == counter.get_total_flops() > 0
    assert counted.params == sum(p.numel() for p in model.parameters())
    assert sum(layer.macs for layer in counted.layers.values()) == counted.macs
    assert sum(layer.params for layer in counted.layers.values()) == counted.params


def test_cost_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(6 * 64, 5, bias=False))
    counted = depl0.cost(model, image(4, 8, batch=3))
    assert counted.layers["0"].params == 6 * 2 * 9 + 6 and counted.layers["0"].macs == 64 * 6 * 2 * 9
    assert counted.layers["2"].params == 6 * 64 * 5 and counted.layers["2"].macs == 6 * 64 * 5
    assert "1" not in counted.layers
    assert str(counted) == f"{counted.params:,} parameters, {counted.macs:,} MACs"


def test_costs_are_those_of_one_image() -> None:
    model, batch = models.build("small_cnn"), 3
    gated = depl0.attach(model, torch.randn(batch, 1, 8, 8), budget=0.5)
    one = depl0.cost(model, torch.randn(1, 1, 8, 8))
    assert gated.dense_cost == one and gated.plan.dense_cost == (one.params, one.macs)
    assert gated.plan.least_cost == depl0.plan(model, torch.randn(1, 1, 8, 8)).least_cost
    freeze_network(gated)
    compact = gated.extract()
    assert depl0.info(compact).compact.macs == depl0.cost(compact, torch.randn(1, 1, 8, 8)).macs
    assert gated.kept_cost().macs == depl0.info(compact).compact.macs


def test_a_first_dimension_that_is_no_batch() -> None:
    layer = nn.Conv2d(4, 6, 3)
    assert depl0.cost(layer, torch.randn(4, 8, 8)).macs == depl0.cost(layer, torch.randn(1, 4, 8, 8)).macs


def test_tied_parameters_count_once_and_calls_count_each() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(self.one(x)))

    counted = depl0.cost(Tied(), torch.randn(1, 4))
    assert (counted.params, counted.macs) == (16, 48)
    assert counted.layers["one"].macs == 32 and counted.layers["two"].params == 0


def test_fused_transformer_layers_are_counted() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True).eval()
    counted = depl0.cost(layer, torch.randn(1, 5, 8))
    assert counted.layers["linear1"].macs == counted.layers["linear2"].macs == 5 * 8 * 16
    assert torch.backends.mha.get_fastpath_enabled()


def test_reference_networks() -> None:
    assert depl0.cost(models.build("resnet56"), torch.randn(1, 3, 32, 32)).macs == pytest.approx(125.5e6, rel=0.01)


def test_cost_of_a_gated_network_is_refused() -> None:
    gated = depl0.attach(STRUCTURES["NoNorm"].build(), image())
    with pytest.raises(depl0.errors.InputError, match="already gated"):
        depl0.cost(gated, image())


class GroupedRows(nn.Module):
    """Rows in three groups, each with a matrix of its own, as experts have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 16, 8))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([4, 7, len(rows)], dtype=torch.int32)
        grouped: torch.Tensor = torch._grouped_mm(rows, self.weight, offs=ends)
        return grouped


def test_products_of_grouped_rows_are_not_free() -> None:
    assert depl0.cost(GroupedRows(), torch.randn(10, 16)).macs == 16 * 8


class ByHand(nn.Module):
    """Computes a layer of 6 inputs and 4 outputs with the function ``compute(weight, x)``."""

    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], *shape: int) -> None:
        super().__init__()
        self.weight, self.compute = nn.Parameter(torch.randn(shape)), compute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self.weight, x)


BY_HAND = {
    "mv": (lambda w, x: torch.stack([torch.mv(w, row) for row in x]), (4, 6), 24),
    "matmul with a vector": (lambda w, x: x @ w, (6,), 6),
    "multiply and sum": (lambda w, x: (x[:, None] * w).sum(-1), (4, 6), 24),
    "cdist": (lambda w, x: torch.cdist(x, w), (4, 6), 24),
    "bilinear": (lambda w, x: torch.nn.functional.bilinear(x, x, w), (4, 6, 6), 4 * (6 * 6 + 6)),
    "addbmm": (lambda w, x: torch.addbmm(torch.zeros(len(x), 4), x[None], w.T[None]), (4, 6), 24),
    "multiply and take the mean": (lambda w, x: (x[:, None] * w).mean(-1), (4, 6), 24),
    "filter by hand": (lambda w, x: (x.unfold(1, 3, 1) * w).sum(-1), (3,), 12),
    "factors before a pool": (lambda w, x: (x.view(-1, 3, 2) * w[:, None]).mean(2), (3,), 0),
    "part of a parameter": (lambda w, x: (x[:, None] * w.tril()).sum(-1), (6, 6), 36),
    "einsum": (lambda w, x: torch.einsum("bi,oi->bo", x, w), (4, 6), 24),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_operators_that_the_flop_counter_takes_for_free(name: str) -> None:
    compute, shape, macs = BY_HAND[name]
    assert depl0.cost(ByHand(compute, *shape), torch.randn(2, 6)).macs == macs


NOT_COUNTED = {
    "bucketize": (lambda w, x: torch.bucketize(x, w.sort().values) + x, (6,)),
    "linalg_solve_triangular": (
        lambda w, x: torch.linalg.solve_triangular(w.tril() + 9 * torch.eye(6), x.T, upper=False).T, (6, 6)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_a_parameter_in_an_operator_that_is_not_counted_is_warned_of(name: str) -> None:
    compute, shape = NOT_COUNTED[name]
    with pytest.warns(UserWarning, match=rf"not counted: {name} \(forward\)\. A budget is a fraction"):
        depl0.cost(ByHand(compute, *shape), torch.randn(2, 6))


# -- expected costs: every configuration of gates, cut and counted -----------------------------------------------------


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
    for name in ("Residual", "Grouped", "GroupedTransposed", "CalledTwice", "Attention"):
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


def test_penalty_is_exact_in_half_precision_networks() -> None:
    gated = depl0.attach(models.build("resnet20"), torch.randn(2, 3, 32, 32))
    before = {kind: gated.penalty(kind).item() for kind in ("params", "macs", "groups")}
    gated.bfloat16()
    assert next(gated.host.parameters()).dtype == torch.bfloat16
    assert {kind: gated.penalty(kind).item() for kind in before} == before
    with torch.autocast("cpu", torch.bfloat16):
        assert {kind: gated.penalty(kind).item() for kind in before} == before
