"""Expected latency: tables at their points, between them, and its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import depl0
from depl0.costs.latency_table import Calibration, ExpectedLatency, LayerTable, TimedUse
from depl0.gated import GatedModel
from depl0.latency.tables import monotone

OUT, IN = (1, 3, 8), (1, 2, 6)


@pytest.fixture(scope="module")
def gated() -> GatedModel:
    """Two convolutions and a head: 6 and 8 gates; the images and the classes have none."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    return depl0.attach(model, torch.randn(1, 3, 8, 8), generator="independent")


def product_table(out_grid: tuple[int, ...], in_grid: tuple[int, ...]) -> LayerTable:
    """A layer that takes a second for each pair of channels: bilinear interpolation is exact for it."""
    return LayerTable(out_grid, in_grid, tuple(tuple(float(out * into) for into in in_grid) for out in out_grid))


def expected(gated: GatedModel, tables: list[LayerTable], calibration: Calibration) -> ExpectedLatency:
    timed = [TimedUse(use, table, 4) for use, table in zip(gated.plan.uses, tables, strict=True)]
    return ExpectedLatency(gated.plan, timed, calibration)


def test_products_are_exact_between_the_points(gated: GatedModel) -> None:
    tables = [product_table((1, 3, 6), (3,)), product_table(OUT, IN), product_table((2,), (1, 8))]
    latency = expected(gated, tables, Calibration(2.0, 0.5, 7.0))
    p = torch.rand(gated.plan.num_gates, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.2
    first, second = float(p[:6].sum()), float(p[6:].sum())
    layers = 3 * first + first * second + 2 * second
    elements = 4 * (first + second + 2)
    assert float(latency(p)) == pytest.approx(2 * layers + 0.5 * elements + 7, rel=1e-5)
    assert latency.dense == pytest.approx(2 * (18 + 48 + 16) + 0.5 * 4 * 16 + 7)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_value_and_gradient_agree_with_autograd(gated: GatedModel, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    some = monotone(torch.rand(3, 3, generator=rng).tolist())
    tables = [product_table((1, 6), (3,)), LayerTable(OUT, IN, tuple(map(tuple, some))), product_table((2,), (8,))]
    latency = expected(gated, tables, Calibration(1.5, 0.01, 0.1))
    p = torch.rand(gated.plan.num_gates, generator=rng).requires_grad_()
    wanted = latency(p)
    value, gradient = latency.value_and_gradient(p.detach())
    torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, p)[0])
    assert bool((gradient >= 0).all())  # no gate is paid for being open


def test_with_everything_open_a_gate_has_a_price(gated: GatedModel) -> None:
    """At the end of a grid the slope is that of what pruning would save, not that of the padding beyond."""
    tables = [product_table((1, 6), (3,)), product_table(OUT, IN), product_table((2,), (1, 8))]
    latency = expected(gated, tables, Calibration())
    _, price = latency.value_and_gradient(torch.ones(gated.plan.num_gates))
    assert price.tolist() == pytest.approx([3.0 + 8.0] * 6 + [6.0 + 2.0] * 8)


def test_latency_must_be_measured_before_it_is_a_cost(gated: GatedModel) -> None:
    with pytest.raises(depl0.errors.InputError, match="latency is not known yet") as caught:
        gated.penalty("latency")
    assert "time_layers" in (caught.value.hint or "")
