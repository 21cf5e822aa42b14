"""Checks of gates and log α from users or files."""

from __future__ import annotations

import torch
from torch import Tensor

from depl0.analysis.plan import Plan
from depl0.errors import GateError


def checked_gates(values: object, plan: Plan, removed: Tensor) -> Tensor:
    """Return the validated gates, one for each gate of a plan; raise an error if they are invalid."""
    wanted = plan.num_gates
    try:
        gates = torch.as_tensor(values)
        found = f"shape {tuple(gates.shape)}"
    except (TypeError, ValueError, RuntimeError):
        gates, found = None, type(values).__name__
    if gates is None or gates.shape != (wanted,) or gates.is_complex():
        raise GateError(
            f"gates must be a vector of {wanted} values, one per gate in plan order, got {found} instead.",
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
            f"gates to close must be {plan.num_gates} values True or False, in plan order, "
            f"got shape {tuple(gates.shape)} of {gates.dtype} instead."
        )
    return gates


def check_saved_gates(plan: Plan, removed_now: Tensor, removed: Tensor | None, kept: Tensor | None) -> None:
    """Raise an error if a saved state belongs to another network, or needs channels that this one has lost."""
    for values in (removed, kept):
        if values is not None and (values.dtype != torch.bool or values.shape != (plan.num_gates,)):
            raise GateError(
                f"the saved state has {tuple(values.shape)} gates of {values.dtype}, but this network has "
                f"{plan.num_gates}.",
                hint="attach with the same network and groups that the state was saved with.",
            )
    saved = torch.zeros_like(removed_now) if removed is None else removed.cpu()
    if bool((removed_now & ~saved).any()):
        raise GateError(
            "this network has lost channels that the saved state still has.",
            hint="load the state into a freshly attached network.",
        )


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
