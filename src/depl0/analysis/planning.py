"""Make a plan and try it: cut random channels out of a copy, which must still run and agree.

The recorded graph contains sizes as numbers. It cannot distinguish ``x.view(n, -1)``, which adapts to a smaller
network, from ``x.view(-1, 400)``, which does not. The trial can: if it fails, the channels at fault are marked as
unprunable, with the reason, and a new plan is made. So a user learns before the training which channels cannot be cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from depl0._util.process import library_defaults
from depl0._util.random import isolated_random
from depl0.analysis.analyse import Analysis
from depl0.analysis.cause import mark_cause
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import LayerUse
from depl0.analysis.selection import GroupChoice, with_alone
from depl0.analysis.traces import evaluation_copy, trace_cases
from depl0.analysis.trial import Trial
from depl0.costs.count import Cost, cost_of_copy, warn_of_uncounted
from depl0.costs.expected import ExpectedCost
from depl0.host.copies import untouched
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_finite, check_host
from depl0.replacements.base import kinds
from depl0.surgery.slicing import kept_gates

__all__ = ["plan"]


@library_defaults()
def plan(model: nn.Module, example_inputs: Any, *, groups: GroupChoice = "all", alone: Collection[str] = ()) -> Plan:
    """Find the channels of a network that can be pruned; all others are unprunable, each with its reason.

    The model is not modified. ``print(plan)`` shows a table, layer by layer.

    Args:
        model: the network.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments; or a list of such examples, if
            the network takes other paths for other arguments.
        groups: "all" groups, "inner" ones (not added to a shortcut), names of groups, or a function that selects some.
        alone: layers with separate gates, which multiply without a cut (:mod:`depl0.analysis.selection`).

    Raises:
        InputError: if the network cannot be analysed: it does not run on the example, or copies of it are not
            independent.
        TraceError: if it cannot be recorded, or its evaluation pass is random.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
        >>> plan(network, torch.randn(1, 3, 8, 8)).num_gates
        8
    """
    example = ExampleInputs.of(example_inputs)
    check_finite(check_host(model))
    with isolated_random():
        copy = evaluation_copy(model)
        traces = trace_cases(model, copy, example)
        analysis = Analysis(copy, list(traces.graphs), kinds())
        with untouched(model):
            trial = Trial(copy, traces.cases)
            while True:
                result = with_alone(analysis.plan(groups), alone, [name for name, _ in copy.named_parameters()])
                result = replace(result, checkpointing=traces.checkpointing, same_in_training=traces.same_in_training)
                failure = trial.run(result)
                if failure is None:
                    break
                mark_cause(analysis, traces.mode_of(failure), failure, partial(trial.run, result))
                trial.guessed = True
            refused = (*traces.refused, *trial.refused)
            result = replace(result, covered=trial.covered, refused=refused, index_limits=traces.index_limits)
            dense = traces.cost or cost_of_copy(copy, example)
            result = _with_costs(result, copy, dense)
    warn_of_uncounted(dense)
    return result


def _uses_of_one(plan: Plan, dense: Cost) -> Iterator[LayerUse]:
    """Yield every call of a layer with its cost for one image.

    The counted cost is divided among a layer's calls. Shapes recorded inside vmap are already those of one image, and a
    complex convolution consists of three real ones.
    """
    recorded = Counter[str]()
    for use in plan.uses:
        recorded[use.path] += use.macs_per_pair * use.out_size * (1 if use.in_axis is None else use.in_size)
    for use in plan.uses:
        counted, total = dense.layers.get(use.layer), recorded[use.path]
        macs = use.macs_per_pair // dense.images
        if counted is not None and use.path == use.layer and use.macs_per_pair * counted.macs % max(total, 1) == 0:
            macs = use.macs_per_pair * counted.macs // max(total, 1)
        yield replace(use, macs_per_pair=macs)


def _with_costs(plan: Plan, model: nn.Module, dense: Cost) -> Plan:
    """Add the cost of one input, dense and with all gates closed: prunable channels may be a small or large part."""
    uses = tuple(_uses_of_one(plan, dense))
    products = tuple(replace(product, macs=product.macs / dense.images) for product in plan.products)
    plan = replace(plan, uses=uses, products=products)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    kept = kept_gates(plan, torch.zeros(plan.num_gates, dtype=torch.bool), torch.zeros(plan.num_gates))
    params, macs = ExpectedCost(plan, shapes, dense.macs).exact(kept.float())
    return replace(
        plan,
        dense_cost=(dense.params, dense.macs),
        least_cost=(round(params), round(macs)),
        dense_layers={name: (layer.params, layer.macs) for name, layer in dense.layers.items()},
    )
