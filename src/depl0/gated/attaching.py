"""Put gates on a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from depl0.config import GateChanges, GateConfig
from depl0.costs.count import Cost, LayerCost
from depl0.gated.model import GatedModel
from depl0.gated.multiples import choose_multiple
from depl0.gates.generators import make_generator
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host
from depl0.planning import plan as make_plan


def attach(
    model: nn.Module,
    example_inputs: Any,
    config: GateConfig | None = None,
    *,
    rng: torch.Generator | None = None,
    **changes: Unpack[GateChanges],
) -> GatedModel:
    """Put gates on every channel of a network that can be pruned. The network itself is not modified.

    Args:
        model: any network; the gated model holds it, and trains its parameters.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments that the network runs on.
        config: how; without it, the defaults of :class:`GateConfig`.
        rng: source of the generator's random initialisation.
        changes: fields of the configuration to set, for instance ``budget=0.5``. A budget that cannot be reached is
            refused; :class:`depl0.Search` takes the gates there in your own training loop.
    """
    check_host(model)
    config = (config or GateConfig()).changed(**changes)
    example = ExampleInputs.of(example_inputs)
    plan = make_plan(model, example, groups=config.groups, alone=config.alone)
    generator = make_generator(
        config.generator,
        [group.size for group in plan.groups],
        direction=config.direction,
        preset=config.preset,
        start=config.start,
        conditioning=config.conditioning,
        rng=rng,
    )
    assert plan.dense_cost is not None and plan.dense_layers is not None  # counted by the plan, once
    layers = {name: LayerCost(*counted) for name, counted in plan.dense_layers.items()}
    gated = GatedModel(model, plan, generator, example, config, Cost(*plan.dense_cost, layers))
    if config.round_to == "auto":
        gated.config = config.changed(round_to=choose_multiple(gated))
    return gated
