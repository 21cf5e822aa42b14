"""Checks of gates and log α from users or files."""

from __future__ import annotations

import torch
from torch import Tensor

from depl0.analysis.plan import Plan
from depl0.errors import GateError


def checked_gates(values: Tensor, plan: Plan, removed: Tensor) -> Tensor:
    """Return the validated gates, one for each gate of a plan; raise an error if they are invalid."""
    gates = torch.as_tensor(values)
    if gates.shape != (plan.num_gates,) or gates.is_complex():
        raise GateError(
            f"gates must be a vector of {plan.num_gates} values, one per gate in plan order, got shape "
            f"{tuple(gates.shape)} instead.",
            hint="plan.groups gives each group's place in the vector.",
        )
    outside = ~((gates >= 0) & (gates <= 1))
    if bool(outside.any()):
        position = int(outside.nonzero()[0])
        raise GateError(
            f"gates must lie in [0, 1], got {float(gates[position])} at position {position} "
            f"(group {group_of(plan, position)})."
        )
    reopened = (gates.cpu() > 0) & removed
    if bool(reopened.any()):
        position = int(reopened.nonzero()[0])
        raise GateError(
            f"gate {position} (group {group_of(plan, position)}) was closed for good and cannot be opened.",
            hint="gated.removed says which gates must stay at 0.",
        )
    return gates


def checked_mask(gates: Tensor, plan: Plan) -> Tensor:
    """Return a mask; raise an error unless it has one boolean for every gate."""
    if gates.dtype != torch.bool or gates.shape != (plan.num_gates,):
        raise GateError(
            f"a mask of gates or the saved state has {tuple(gates.shape)} gates of {gates.dtype}, but this network has "
            f"{plan.num_gates}, each True or False.",
            hint="attach with the same network and groups that the state was saved with.",
        )
    return gates


def checked_log_alpha(log_alpha: Tensor, plan: Plan) -> Tensor:
    """Return log α; raise an error if a value is not finite."""
    bad = ~log_alpha.isfinite()
    if bool(bad.any()):
        position = int(bad.nonzero()[0])
        raise GateError(
            f"log alpha is {float(log_alpha[position])} at gate {position} (group {group_of(plan, position)}).",
            hint="the search has diverged; go back to the last good checkpoint and lower the gate learning rate.",
        )
    return log_alpha


def group_of(plan: Plan, gate: int) -> str:
    """Return the name of the group that a gate belongs to."""
    return next(group.name for group in plan.groups if group.offset <= gate < group.offset + group.size)
