"""Every structure is pruned exactly, with the plan that it must get: pruned or unprunable, never wrong."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import depl0
from depl0.host.inputs import ExampleInputs
from tests.networks import heads, streams  # noqa: F401 - their structures enter the list
from tests.networks.structures import STRUCTURES, NormAct, Structure
from tests.support.compare import call, cast, distance, flat, liven, pruned, same_cost
from tests.support.sampling import covering

pytestmark = pytest.mark.structures

EVERY = pytest.mark.parametrize("name", STRUCTURES)


def built(structure: Structure, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return liven(structure.build(), structure.inputs).to(dtype)


@cache
def prune_once(name: str) -> tuple[nn.Module, Any, depl0.GatedModel, nn.Module]:
    """Return a structure in float64, its inputs, and it gated and pruned; tests must not change them."""
    host, inputs = built(STRUCTURES[name], torch.float64), cast(STRUCTURES[name].inputs, torch.float64)
    return host, inputs, *pruned(host, inputs)


@EVERY
def test_structure_is_pruned_exactly(name: str) -> None:
    host, inputs, gated, compact = prune_once(name)
    assert distance(call(gated, inputs), call(compact, inputs)) < (1e-5 if name == "FloatStream" else 1e-9)
    assert type(compact) is type(host)
    assert compact.state_dict().keys() == host.state_dict().keys()

    counted = depl0.cost(compact, inputs)
    assert counted.params < gated.dense_cost.params and counted.macs < gated.dense_cost.macs
    assert same_cost(gated.kept_cost(), counted)
    assert {name for name, p in compact.named_parameters() if p.requires_grad} == {
        name for name, p in host.named_parameters() if p.requires_grad
    }


@EVERY
def test_plan_of_structure(name: str) -> None:
    structure, plan = STRUCTURES[name], prune_once(name)[2].plan
    assert [(group.name, group.size) for group in plan.groups] == list(structure.groups.items())
    reports = {report.layer: report for report in plan.layers}
    for layer, reason in structure.unprunable.items():
        assert any(reason in text for text, _ in reports[layer].reasons), reports[layer]
    for report in reports.values():
        assert report.prunable + sum(count for _, count in report.reasons) == report.channels
    if structure.sites is not None:
        assert structure.sites <= set(plan.sites)


@EVERY
def test_open_gates_change_nothing(name: str) -> None:
    host, inputs, gated, _ = prune_once(name)
    gated = copy.deepcopy(gated)
    gated.fix_gates(torch.ones(gated.plan.num_gates))
    assert distance(call(host, inputs), call(gated, inputs)) == 0
    for kind, dense in (("params", gated.dense_cost.params), ("macs", gated.dense_cost.macs)):
        assert gated.penalty(kind).item() == pytest.approx(1)
        assert gated.penalty(kind, scale="count").item() == pytest.approx(dense)


@EVERY
def test_compact_network_trains(name: str) -> None:
    """What exists in training only is cut along: a step of fine-tuning runs, on a batch of two."""
    _, inputs, _, compact = prune_once(name)
    example = ExampleInputs.of(inputs).twice() if name == "OneByOneMaps" else ExampleInputs.of(inputs)
    compact = copy.deepcopy(compact).train()
    outputs = compact(*example.args, **example.kwargs)
    flat(outputs).square().sum().backward()
    assert any(p.grad is not None and p.grad.isfinite().all() for p in compact.parameters())


IN_ANY_PRECISION = ["NormAfterConv", "Residual", "GroupNorms", "FloatStream"]


@pytest.mark.parametrize(("name", "dtype"), covering(IN_ANY_PRECISION, [torch.float32, torch.bfloat16, torch.float16]))
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    structure = STRUCTURES[name]
    host, inputs = built(structure, dtype), cast(structure.inputs, dtype)
    gated, compact = pruned(host, inputs)
    assert distance(call(gated, inputs), call(compact, inputs)) < (1e-5 if dtype == torch.float32 else 2e-2)
    assert {p.dtype for p in compact.parameters()} == {dtype}
    assert list(gated.plan.groups) == list(depl0.plan(built(structure, torch.float32), structure.inputs).groups)
    assert gated.log_alpha().dtype == torch.float32 and gated.evaluation_gates().dtype == torch.float32


def test_norms_may_be_kept_in_float32() -> None:
    structure = STRUCTURES["NormAfterConv"]
    host, inputs = built(structure, torch.bfloat16), cast(structure.inputs, torch.bfloat16)
    host.norm.float()  # its vectors are scaled together with the convolutions' biases
    gated, compact = pruned(host, inputs)
    assert distance(call(gated, inputs), call(compact, inputs)) < 2e-2
    assert compact.norm.weight.dtype == torch.float32 and compact.two.bias.dtype == torch.bfloat16


def test_attributes_tell_the_new_sizes() -> None:
    _, compact = pruned(STRUCTURES["Grouped"].build(), STRUCTURES["Grouped"].inputs, seed=3)
    conv = compact.grouped
    assert (conv.out_channels, conv.in_channels) == (conv.weight.shape[0], conv.weight.shape[1] * conv.groups)
    assert conv.in_channels == compact.one.out_channels and conv.groups < 4
    _, compact = pruned(STRUCTURES["GroupNorms"].build(), STRUCTURES["GroupNorms"].inputs, seed=3)
    assert compact.norm.num_channels == 2 * compact.norm.num_groups == len(compact.norm.weight) < 8
    _, compact = pruned(STRUCTURES["FusedNormSigmoid"].build(), STRUCTURES["FusedNormSigmoid"].inputs, seed=3)
    assert type(compact.norm) is NormAct and compact.norm.num_features == len(compact.norm.running_var) < 8
    assert compact.head.in_features == compact.head.weight.shape[1]
    _, compact = pruned(STRUCTURES["SlopePerChannel"].build(), STRUCTURES["SlopePerChannel"].inputs, seed=3)
    assert compact.act.num_parameters == len(compact.act.weight) < 8


def test_tied_parameters_stay_tied() -> None:
    _, compact = pruned(STRUCTURES["TiedWeights"].build(), STRUCTURES["TiedWeights"].inputs)
    assert compact.one.weight is compact.other.weight and compact.head.weight is compact.head2.weight
    assert compact.other.out_channels == len(compact.one.weight) < 8
