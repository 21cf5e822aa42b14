"""Make a plan and try it: cut random channels out of a copy, and see that the copy still runs and agrees.

The recorded graph holds sizes as numbers. It cannot tell ``x.view(n, -1)``, which follows a smaller network, from
``x.view(-1, 400)``, which does not. The trial can: where it fails, the channels at fault are frozen, with the reason,
and a new plan is made. So a user learns before training, not after, what cannot be cut.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from depl0._util.random import isolated_random
from depl0.analysis.alone import with_alone
from depl0.analysis.analyse import Analysis
from depl0.analysis.plan import Plan
from depl0.analysis.selection import GroupChoice
from depl0.costs.count import cost_of_copy
from depl0.costs.expected import ExpectedCost
from depl0.host.copies import private_copy, untouched
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host
from depl0.planning.cause import freeze_cause
from depl0.planning.trace_cases import check_modes, look_at
from depl0.planning.trial import Trial
from depl0.replacements.base import kinds
from depl0.surgery.slicing import kept_gates

__all__ = ["plan"]


def plan(model: nn.Module, example_inputs: Any, *, groups: GroupChoice = "all", alone: Collection[str] = ()) -> Plan:
    """Find the channels of a network that can be pruned; everything else is frozen, each with its reason.

    The model is not modified. ``example_inputs`` may be a list of several examples, for a network that takes other
    paths for other arguments. ``print(plan)`` shows a table, layer by layer. Layers in ``alone`` get gates of their own
    that multiply and cut nothing (:mod:`depl0.analysis.alone`).
    """
    example = ExampleInputs.of(example_inputs)
    check_host(model)
    with isolated_random():
        copy = check_modes(private_copy(model))
        seen = look_at(model, copy, example)
        analysis = Analysis(copy, list(seen.graphs), kinds())
        with untouched(model):
            trial = Trial(copy, seen.cases)
            while True:
                result = with_alone(analysis.plan(groups), alone, [name for name, _ in copy.named_parameters()])
                failure = trial.run(result)
                if failure is None:
                    found = replace(
                        result,
                        covered=trial.covered,
                        refused=(*seen.refused, *trial.refused),
                        checkpointing=seen.checkpointing,
                    )
                    return _with_least_cost(found, copy, example)
                freeze_cause(analysis, seen.mode_of(failure), failure, partial(trial.run, result))


def _with_least_cost(plan: Plan, model: nn.Module, example: ExampleInputs) -> Plan:
    """Note what would be left with all gates closed; channels that can be pruned may cost little or much.

    ``model`` is a copy of the host that is not needed any more.

    Costs are those of one image, those of every layer's use too.
    """
    dense = cost_of_copy(model, example)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    kept = kept_gates(plan, torch.zeros(plan.num_gates, dtype=torch.bool), torch.zeros(plan.num_gates))
    uses = tuple(replace(use, macs_per_pair=use.macs_per_pair // dense.images) for use in plan.uses)
    products = tuple(replace(product, macs=product.macs / dense.images) for product in plan.products)
    plan = replace(plan, uses=uses, products=products)
    params, macs = ExpectedCost(plan, shapes, dense.macs).exact(kept.float())
    layers = {name: (layer.params, layer.macs) for name, layer in dense.layers.items()}
    return replace(
        plan,
        dense_cost=(dense.params, dense.macs),
        least_cost=(round(params), round(macs)),
        dense_layers=layers,
    )
