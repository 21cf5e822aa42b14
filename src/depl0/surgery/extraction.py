"""From a gated model to a plain, smaller one, with a certificate that both compute the same outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from depl0._util.random import isolated_random
from depl0.analysis.plan import Plan
from depl0.costs.count import cost
from depl0.equivalence.certificate import certify
from depl0.gates.scaling import scaled_parameters
from depl0.host.copies import private_copy
from depl0.host.inputs import ExampleInputs
from depl0.replacements.constant import removable, remove, workable
from depl0.surgery.record import record_cut
from depl0.surgery.slicing import cut_to, kept_gates, kept_positions


def fold_and_cut(plan: Plan, host: nn.Module, gates: Tensor, kept: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
    """Fold gates into a copy of the host and slice it. Return the copy and the gated parameters it was made from."""
    scaled = scaled_parameters(plan, host, gates)
    compact = private_copy(host)
    with torch.no_grad():
        for name, parameter in compact.named_parameters():
            if name in scaled:
                parameter.copy_(scaled[name])
    cut_to(compact, kept_positions(plan, kept), plan.replacements)
    return compact, scaled


def extract(
    plan: Plan,
    host: nn.Module,
    gates: Tensor,
    score: Tensor,
    example: ExampleInputs,
    dense_cost: tuple[int, int],
    remove_blocks: bool = False,
) -> nn.Module:
    """Return a plain module of the host's class without the closed channels.

    ``gates`` are the deterministic gates; ``score`` decides which channel is kept if all gates of a group are closed.
    """
    gates, score = gates.detach().cpu(), score.detach().cpu()
    kept = kept_gates(plan, gates > 0, score)
    compact, scaled = fold_and_cut(plan, host, gates, kept)
    positions = kept_positions(plan, kept)
    example = example.on_device_of(host)
    with isolated_random():
        removals = workable(compact, removable(plan, host, gates > 0), example) if remove_blocks else []
        certificate = certify(host, scaled, compact, removals, example, positions, plan)
    remove(compact, removals)
    counted = cost(compact, example)
    costs = dense_cost, (counted.params, counted.macs)
    record_cut(host, compact, plan, positions, certificate, example, costs, removals)
    return compact
