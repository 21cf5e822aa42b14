"""The dependency between gates: where learning it starts from, and how much it decides.

Start: the loss changes by about g·Δz when gates move by Δz, and the mean square of that, E[(g·Δz)²], has mixed terms
F_ij = E[g_i·g_j]. With gate i closed, the worth of gate j is no longer F_jj but about F_jj + 2·F_ij: more where both
say the same and j must now say it alone, less where j was there to balance i. On the logarithmic scale of scores,

    K_ji = log(1 + 2·F_ij/F_jj)

is what j gains when i closes. The weights of a group's generator are −K, centred in every row, so that nothing changes
while all neighbours are open or closed alike, and scaled so that neighbours move scores by a given share of their
spread. They are where learning starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from depl0._util.distributed import all_reduce_mean
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gates import hard_concrete
from depl0.gates.generators.dependency import parts, spread_share
from depl0.gates.generators.fc import FC
from depl0.search.calibration import Batches, Loss
from depl0.search.scores.importance import gate_gradients, random_projection

_LEAST, _MOST = 0.25, 4.0
"""the factors by which closing one channel may change the worth of another: beyond them is noise"""


def check_can_depend(gated: GatedModel) -> None:
    """Refuse a generator that has no weights between gates to start from, or that is not fed on gates."""
    if not isinstance(gated.generator, FC) or gated.generator.conditioning != "gates":
        raise InputError(
            "dependency needs generator 'fc' with conditioning 'gates', got "
            f"{gated.config.generator!r} with {gated.config.conditioning!r} instead.",
            hint="attach with conditioning='gates', or set dependency to 0.",
        )


def start_dependent(gated: GatedModel, batches: Batches, loss: Loss | None, share: float) -> None:
    """Set the generator's weights from how the gates of neighbouring groups depend on each other.

    ``share`` is how far neighbours move scores, against the spread of the scores. Biases are left as they are.
    """
    check_can_depend(gated)
    generator = gated.generator
    assert isinstance(generator, FC)
    loss = random_projection() if loss is None else loss
    gradients = torch.stack(list(gate_gradients(gated, batches, loss)))
    places, order = [group.gates for group in gated.plan.groups], generator.order()
    with torch.no_grad():
        generator.couple(order[0], torch.zeros(generator.sizes[order[0]], generator.inputs(order[0])))
        for before, group in pairwise(order):
            mixed = gradients[:, places[group]].T @ gradients[:, places[before]] / len(gradients)
            own = gradients[:, places[group]].square().mean(0)
            gain = gains(all_reduce_mean(mixed), all_reduce_mean(own))
            generator.couple(group, -share / generator.preset.bound * normalised(gain))


def gains(mixed: Tensor, own: Tensor) -> Tensor:
    """Return how much each gate (rows) gains in log worth when a neighbour (columns) closes.

    >>> gains(torch.tensor([[0.5, 0.0, -9.0]]), torch.tensor([1.0])).exp()
    tensor([[2.0000, 1.0000, 0.2500]])
    """
    ratio = 1 + 2 * mixed / own.clamp_min(torch.finfo(own.dtype).tiny)[:, None]
    return ratio.clamp(_LEAST, _MOST).log()


def normalised(gain: Tensor) -> Tensor:
    """Centre every row, and scale all rows together to a mean square length of 1."""
    centred = gain - gain.mean(1, keepdim=True)
    return centred / centred.square().sum(1).mean().sqrt().clamp_min(1e-12)


# -- how much it decides --------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Dependency:
    """How much the dependency between gates decides at one moment."""

    spread_share: float | None
    """the spread of W·x over a group's gates, over that of W·x + b; None: nothing spreads yet"""
    gates_that_differ: int
    """gates that would be open instead of closed, or closed instead of open, with W = 0"""
    gates: int
    """of so many that have not been removed"""

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {"spread_share": self.spread_share, "gates_that_differ": self.gates_that_differ, "gates": self.gates}


@torch.no_grad()
def measure_dependency(gated: GatedModel) -> Dependency | None:
    """Measure it; None where the gates know nothing of each other, or are fixed.

    The same rule decides which gates are open: with a budget, the threshold is found anew for the same cost, once with
    the scores as they are and once with W = 0. Fed on gates, groups are fed on the model's own evaluation gates.
    """
    found = None if gated.engine.is_fixed else parts(gated.generator, gated.engine.gates_of_group)
    if found is None:
        return None
    differ = _open_gates(gated, found.scores()) != _open_gates(gated, found.alone())
    return Dependency(spread_share(gated.generator, found), int(differ.sum()), int((~gated.engine.removed).sum()))


def _open_gates(gated: GatedModel, scores: Tensor) -> Tensor:
    threshold, log_alpha = gated.engine.threshold, scores
    if threshold is not None:
        before = threshold.shift.clone()
        threshold.solve(scores)
        log_alpha = threshold.sharpness * (scores - threshold.shift)
        threshold.shift.copy_(before)
    return (hard_concrete.evaluation_gates(log_alpha, gated.config.evaluation).cpu() > 0) & ~gated.engine.removed
