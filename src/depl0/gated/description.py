"""A gated network in a few lines: gates, cost and budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depl0.errors import GateError
from depl0.gates.threshold import COSTS
from depl0.select.freeze import least_share

if TYPE_CHECKING:
    from depl0.gated.model import GatedModel


def describe(gated: GatedModel) -> str:
    """Return what ``print(gated)`` shows; printing never fails, whatever has become of the gates."""
    try:
        return _in_lines(gated)
    except GateError as error:
        return f"GatedModel({type(gated.host).__name__}: {error.message})"


def _in_lines(gated: GatedModel) -> str:
    dense, config = gated.dense_cost, gated.config
    kept = gated.kept_cost()
    lines = [
        f"GatedModel({type(gated.host).__name__}: {gated.plan.num_gates:,} gates in {len(gated.plan.groups)} groups, "
        f"{config.generator} {config.direction}, preset {gated.generator.preset.name})",
        f"  dense   {dense}",
        f"  kept    {kept.macs / dense.macs:.1%} of the MACs, {kept.params / dense.params:.1%} of the parameters",
        f"  least   {least_share(gated, 'macs', config.multiple):.1%} of the MACs, "
        f"{least_share(gated, 'params', config.multiple):.1%} of the parameters",
    ]
    if gated.budget is not None:
        lines.append(f"  budget  {gated.budget.share:.1%} of the {COSTS[gated.budget.of]}")
    state = "fixed" if gated._fixed is not None else f"{config.evaluation} rule"
    gone = f", {int(gated.gone.sum()):,} of them for good" if gated._gone is not None else ""
    closed = int((gated.evaluation_gates() == 0).sum())
    lines.append(f"  gates   {closed:,} closed ({state}){gone}")
    return "\n".join(lines)
