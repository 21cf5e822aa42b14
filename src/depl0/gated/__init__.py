"""A host network with gates on its channels, and :func:`attach`, which puts them there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from depl0._util.process import library_defaults
from depl0.analysis.planning import plan as make_plan
from depl0.config import GateConfig, OtherGateChanges
from depl0.costs.count import Cost, LayerCost
from depl0.gated.model import FIXED, KEPT, REMOVED, GatedModel
from depl0.gated.per_image import check_image_gates
from depl0.gates.generators import make_generator
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host

__all__ = ["FIXED", "KEPT", "REMOVED", "GatedModel", "attach"]


@library_defaults()
def attach(
    model: nn.Module,
    example_inputs: Any,
    config: GateConfig | None = None,
    *,
    budget: float | None = None,
    rng: torch.Generator | None = None,
    **changes: Unpack[OtherGateChanges],
) -> GatedModel:
    """Put gates on every prunable channel of a network. The network itself is not modified.

    Args:
        model: any network; the gated model contains it and trains its parameters.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments for the network.
        config: the gate configuration; None: the defaults of :class:`depl0.GateConfig`.
        budget: the fraction of the cost to keep; None: the configuration's. :class:`depl0.Search` moves the gates to
            this budget in your own training loop.
        rng: random generator of the generator's initialisation; None: PyTorch's global one.
        changes: other fields of the configuration to set, for example ``round_to=8``.

    Returns:
        The gated model.

    Raises:
        InputError: an argument is invalid, or the budget cannot be reached.
        TraceError: the network runs, but its graph cannot be recorded.
        NothingToPruneError: no channel can be removed; the message gives the reasons.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
        >>> gated = attach(model, torch.zeros(1, 3, 8, 8), budget=0.5)
        >>> gated.plan.num_gates
        16
    """
    check_host(model)
    config = config or GateConfig()
    config = config.changed(budget=config.budget if budget is None else budget, **changes)
    example = ExampleInputs.of(example_inputs)
    plan = make_plan(model, example, groups=config.groups, alone=config.alone)
    if config.draw == "image":
        check_image_gates(plan, model, example)
    generator = make_generator(
        config.generator,
        [group.size for group in plan.groups],
        direction=config.direction,
        preset=config.preset,
        start=config.start,
        rng=rng,
    )
    assert plan.dense_cost is not None and plan.dense_layers is not None  # counted once by the plan
    layers = {name: LayerCost(*counted) for name, counted in plan.dense_layers.items()}
    dense_cost = Cost(*plan.dense_cost, layers)
    return GatedModel(model, plan, generator, example, config, dense_cost)
