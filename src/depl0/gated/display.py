"""The representation of a gated model: a few lines of text, and the host's signature."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from depl0.errors import GateError
from depl0.gates.threshold import COSTS
from depl0.select.gates import minimum_share

if TYPE_CHECKING:
    from depl0.gated.model import GatedModel


def describe(gated: GatedModel) -> str:
    """Return the text of ``print(gated)``; printing never fails, whatever the state of the gates."""
    try:
        return _in_lines(gated)
    except GateError as error:
        return f"GatedModel({type(gated.host).__name__}: {error.message})"


def _in_lines(gated: GatedModel) -> str:
    dense, config, network = gated.dense_cost, gated.config, gated.snapshot()
    kept = network.cost(network.gates > 0)
    minimum = {of: minimum_share(network, config.changed(of=of)) for of in ("macs", "params")}
    lines = [
        f"GatedModel({type(gated.host).__name__}: {gated.plan.num_gates:,} gates in {len(gated.plan.groups)} groups, "
        f"{config.generator} {config.direction}, preset {gated.generator.preset.name})",
        f"  dense   {dense}",
        f"  kept    {kept.macs / dense.macs:.1%} of the MACs, {kept.params / dense.params:.1%} of the parameters",
        f"  minimum {minimum['macs']:.1%} of the MACs, {minimum['params']:.1%} of the parameters",
    ]
    if config.budget is not None:
        lines.append(f"  budget  {config.budget:.1%} of the {COSTS[config.of]}")
    state = "fixed" if network.is_fixed else f"{config.evaluation} rule"
    removed = int(network.removed.sum())
    permanent = f", {removed:,} of them for good" if removed else ""
    lines.append(f"  gates   {int((network.gates == 0).sum()):,} closed ({state}){permanent}")
    return "\n".join(lines)


def with_signature_of(host: nn.Module, method: Any) -> Any:
    """Return a bound method whose ``inspect.signature`` is that of the host's ``forward``.

    Trainers use the signature to find the inputs of a network.
    """
    original = method.__func__
    function = FunctionType(
        original.__code__, original.__globals__, original.__name__, original.__defaults__, original.__closure__
    )
    function.__doc__ = original.__doc__
    try:
        parameters = list(inspect.signature(host.forward).parameters.values())
    except (TypeError, ValueError):  # a forward written in C has no signature
        return method
    gated = inspect.Parameter("__gated", inspect.Parameter.POSITIONAL_ONLY)  # which a bound method omits
    function.__signature__ = inspect.Signature([gated, *parameters])  # type: ignore[attr-defined]
    return MethodType(function, method.__self__)
