"""Rounded channels: multiples of N or whole groups, within the budget, the best gates of each group kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import depl0
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.select.gates import check_budget, minimum_share, select_gates
from depl0.surgery.record import record_of
from tests.networks.mixed import given_scores, mixed
from tests.networks.structures import STRUCTURES, image
from tests.networks.tiny import tiny_gated

ROUND_TO = [1, 2, 3, 4, 8, 16, 32]


def rounded_gates(gated: GatedModel, round_to: int, remove_blocks: bool = False) -> Tensor:
    config = gated.config.changed(round_to=round_to, remove_blocks=remove_blocks)
    return select_gates(gated.snapshot(), config).gates


def check_counts(gated: GatedModel, gates: Tensor, round_to: int) -> None:
    """Every convolution's kept channels are a multiple of N, or all of the layer's, and the best of their groups."""
    check_widths(gated, gates, round_to)
    scores = gated.log_alpha().detach()
    for group in gated.plan.groups:
        opened = gates[group.gates] > 0
        if bool(opened.any()) and not bool(opened.all()):
            assert scores[group.gates][opened].min() >= scores[group.gates][~opened].max(), group.name


def check_widths(gated: GatedModel, gates: Tensor, round_to: int) -> None:
    widths = {"stem": 20, "expand": 36, "depthwise": 36, "project": 20, "wide": 24, "grouped": 48, "small": 5}
    for layer, width in widths.items():
        axis = gated.plan.axes[(f"{layer}.weight", 0)]
        kept = int((gates[axis] > 0).sum())
        assert kept == width or (kept > 0 and kept % round_to == 0), (layer, kept)


@given(st.integers(0, 10_000), st.sampled_from(ROUND_TO), st.floats(0.25, 1.0), st.sampled_from(["macs", "params"]))
@example(seed=0, round_to=2, budget=0.9999999999999999, of="macs")
@settings(max_examples=40)
def test_frozen_gates_are_rounded_within_the_budget(seed: int, round_to: int, budget: float, of: str) -> None:
    gated = given_scores(seed)
    network, config = gated.snapshot(), gated.config.changed(budget=budget, of=of, round_to=round_to)
    if budget < minimum_share(network, config):
        with pytest.raises(InputError, match=r"is infeasible"):
            check_budget(network, config)
        return
    selection = select_gates(network, config)
    assert network.share(selection.gates > 0, of) <= budget
    if round_to > 1:
        check_counts(gated, selection.gates, round_to)
    gated.fix_gates(selection.gates)  # rounding what is rounded changes nothing
    assert torch.equal(rounded_gates(gated, round_to), selection.gates)


@given(st.integers(0, 10_000), st.sampled_from(ROUND_TO[1:]), st.floats(-2, 2))
@settings(max_examples=40)
def test_without_a_budget_each_group_goes_to_the_nearest_multiple(seed: int, round_to: int, mean: float) -> None:
    gated = given_scores(seed, mean)
    before, after = gated.evaluation_gates() > 0, rounded_gates(gated, round_to) > 0
    check_counts(gated, after.float(), round_to)
    for group in gated.plan.groups:
        was, now = int(before[group.gates].sum()), int(after[group.gates].sum())
        assert abs(now - was) <= max(round_to / 2, round_to - was, group.size - was if now == group.size else 0)


@pytest.mark.parametrize("budget", [None, 0.5])
@pytest.mark.parametrize("round_to", [1, 2, 4])
def test_a_group_that_was_closed_for_good_is_left_alone(round_to: int, budget: float | None) -> None:
    gated = tiny_gated(budget=budget, round_to=round_to)
    first, second = gated.plan.groups
    gated.remove(torch.arange(gated.plan.num_gates) < first.size)
    frozen = depl0.Search(gated, 1, cut="never").freeze().gates
    assert not frozen[first.gates].any()
    kept = int((frozen[second.gates] > 0).sum())
    assert kept > 0 and kept % round_to == 0


def test_a_gate_of_a_grouped_convolution_counts_its_channels() -> None:
    gated = mixed()
    (name,) = [g.name for g in gated.plan.groups if "grouped" in g.layers]
    group = next(g for g in gated.plan.groups if g.name == name)
    gates = torch.ones(gated.plan.num_gates)
    gates[group.gates][7:] = 0  # seven gates: 14 channels of ``wide`` and 28 of ``grouped``
    gated.fix_gates(gates)
    compact = gated.extract(round_to=8)
    gated.free_gates()
    assert (compact.wide.out_channels, compact.grouped.out_channels) == (16, 32)


def test_the_compact_network_has_the_rounded_widths_and_is_certified() -> None:
    gated = given_scores(3)
    compact = gated.extract(round_to=8)
    record = record_of(compact)
    assert record is not None and record.certificate.max_error < 1e-5
    for name, width in (("stem", 20), ("expand", 36), ("wide", 24), ("grouped", 48)):
        kept = compact.get_submodule(name).out_channels
        assert kept == width or kept % 8 == 0, name
    gates = rounded_gates(gated, 8)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(compact(x), gated.call_with_gates(gates, x), rtol=1e-4, atol=1e-5)


def test_groups_that_vanish_stay_closed_where_blocks_are_removed() -> None:
    gated = depl0.attach(STRUCTURES["Residual"].build(), image(), generator="independent")
    group = next(g for g in gated.plan.groups if not g.shared)
    gates = torch.ones(gated.plan.num_gates)
    gates[group.gates] = 0
    gated.fix_gates(gates)
    assert int(rounded_gates(gated, 2, remove_blocks=True)[group.gates].sum()) == 0
    assert int(rounded_gates(gated, 2)[group.gates].sum()) == 2


@pytest.mark.parametrize("wrong", [0, 2.0], ids=repr)
def test_numbers_that_are_none_are_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="round_to must be an integer of at least 1"):
        mixed().extract(round_to=wrong)  # type: ignore[arg-type]
