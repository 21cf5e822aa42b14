"""Plans of the few networks that most tests attach or train: always the same, so made once in a process.

A plan is plain data and is made from a copy of the network, without a trace in it or in the random state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from depl0.analysis.plan import Plan
from depl0.analysis.planning import plan
from depl0.host.inputs import ExampleInputs

NETWORKS = (
    "tests.networks.coupled.Coupled",
    "tests.networks.coupled.NoNorm",
    "tests.networks.golden.TinyDigits",
    "tests.networks.loops.Net",
    "tests.networks.tiny.TinyNet",
    "tests.networks.trainers.Net",
    "depl0.app.models.plain.SmallCNN",
)
"""classes whose structure follows from the shapes of their parameters"""
_KNOWN: dict[Any, Plan] = {}


def remembered(model: nn.Module, example_inputs: Any, *, groups: Any = "all", **others: Any) -> Plan:
    """Return the plan of one of these networks, made once; of others, a new one."""
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    if name not in NETWORKS or callable(groups) or any(others.values()):
        return plan(model, example_inputs, groups=groups, **others)
    leaves = [leaf for leaf in ExampleInputs.of(example_inputs).leaves() if isinstance(leaf, torch.Tensor)]
    key = (name, str(groups), model.training, *map(_looks, leaves), *map(_looks, model.state_dict().values()))
    if key not in _KNOWN:
        _KNOWN[key] = plan(model, example_inputs, groups=groups)
    return _KNOWN[key]


def _looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device.type, tensor.stride()
