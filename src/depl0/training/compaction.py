"""Compaction during training: gates that have closed are cut out of the network while the search goes on.

``run.compact`` says when:

- ``progressive``: whenever the gates that have stayed nearly closed would free a tenth of the remaining MACs.
- ``once``: when the search has converged: gates are frozen, the network is cut, and the rest of the search trains it.
- ``never``: the network keeps its size until everything is trained.

A gate that is cut out cannot come back. With a budget the threshold rises while the target falls, away from the gates
below it, and once it rests they become only surer, because the sharpness still rises; with a penalty, a closed gate has
nothing but the penalty to move it. So a gate that has stayed below the threshold for a while hardly ever returns.

Everything is decided from log α at a few points of the search, alike in all processes, and what is remembered from one
look to the next is part of every checkpoint. So a resumed run does the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import torch
from accelerate.utils import broadcast
from torch import Tensor

from depl0.budgets.rounding import in_whole_steps
from depl0.gated import GatedModel
from depl0.gates import hard_concrete
from depl0.pruning.convergence import Stay, may_begin
from depl0.surgery.narrow import carry_over
from depl0.training.loop import Phase, Session

LOOKS = 50
"""looks at the gates in a whole search; each waits for the device"""
CLOSED_BELOW = 0.01
"""the open probability below which a gate counts as good as closed"""
LOOKS_BELOW = 2
"""looks in a row that a gate must have been there"""
LEAST_GAIN = 0.1
"""the share of the remaining MACs that must become free"""


@final
class Watch:
    """Looks at the gates of a search from time to time: notes when it has converged, and makes the network smaller."""

    def __init__(self, session: Session, gated: GatedModel, phase: Phase, freeze: Callable[[float], None]) -> None:
        self._session, self._gated, self._phase, self._freeze = session, gated, phase, freeze
        self._steps = session.data.train.steps
        self._every = max(1, round(phase.epochs * self._steps / LOOKS))

    def look(self, epoch: float) -> Callable[[], None] | None:
        """Say, before a step, whether the network must be rebuilt: return what does it, or None."""
        history, mode = self._session.history, self._session.recipe.run.compact
        if round(epoch * self._steps) % self._every or not history.get("released") or "gates" in history:
            return None
        log_alpha = self._log_alpha()
        if not bool(log_alpha.isfinite().all()):  # said by those who watch over numbers, with the step and the cause
            return None
        if "convergence" not in history and self._has_converged(log_alpha, epoch):
            self._note_convergence(epoch)
            if mode == "once":
                return lambda: self._settle(epoch)
        if mode == "progressive" and self._may_cut_early():
            closing = self._closing(log_alpha)
            if self._is_worth_it(closing):
                return lambda: self._cut(closing, epoch)
        return None

    def _may_cut_early(self) -> bool:
        """Tell whether gates may go before the freezing: timing chooses among all gates of the network."""
        target = self._session.recipe.target
        return target.budget is None or target.of != "latency"

    def _log_alpha(self) -> Tensor:
        with torch.no_grad():
            log_alpha = self._gated.log_alpha()
        if self._session.engine.num_processes > 1:
            log_alpha = broadcast(log_alpha.contiguous())
        return log_alpha.cpu()

    # -- convergence -------------------------------------------------------------------------------------------------

    def _has_converged(self, log_alpha: Tensor, epoch: float) -> bool:
        recipe, history = self._session.recipe, self._session.history
        search = recipe.search
        open_gates = hard_concrete.evaluation_gates(log_alpha, self._gated.evaluation) > 0
        open_gates &= ~self._gated.gone
        reached_at = search.gate_warmup + search.ramp if recipe.target.budget is not None else None
        if not may_begin(open_gates, epoch / search.epochs, reached_at):
            return False
        stay = Stay(**history["stay"]) if "stay" in history else Stay(open_gates, epoch)
        stay = stay.after(open_gates, epoch, search.converged_change)
        history["stay"] = {"open_gates": stay.open_gates, "since": stay.since}
        return stay.lasts(epoch, search.converged_epochs)

    def _note_convergence(self, epoch: float) -> None:
        session = self._session
        since = session.history["stay"]["since"]
        session.history["convergence"] = {"epoch": epoch, "step": session.global_step, "since_epoch": since}
        note_event(session, "convergence", epoch, since_epoch=since)
        session.reporter.note(f"the search has converged: the open gates have stayed since epoch {since:.4g}")

    def _settle(self, epoch: float) -> None:
        """Freeze the gates before the search is over, and train what they leave."""
        average = self._phase.average
        with average.swapped_in() if average is not None else nullcontext():
            self._freeze(epoch)
        self._phase.some_rest = True  # the generator has nothing to do any more
        self._cut(torch.tensor(self._session.history["gates"]) == 0, epoch)

    # -- gates that have closed ----------------------------------------------------------------------------------------

    def _closing(self, log_alpha: Tensor) -> Tensor:
        """Return the gates that have been nearly closed for some looks, this one included.

        One gate of every group is left to live: its channel stays anyway, and without it a plain chain of layers would
        be cut in two for good. Where gates will be rounded, what is left of a group is a number that it may keep.
        """
        history = self._session.history
        below = hard_concrete.open_probability(log_alpha) < CLOSED_BELOW
        before: Tensor = history.get("looks_below", torch.zeros(len(below), dtype=torch.long))
        looks = torch.where(below, before + 1, 0)
        history["looks_below"] = looks
        closing = self._gated.can_go((looks >= LOOKS_BELOW) & ~self._gated.gone)
        round_to = self._session.recipe.target.round_to
        if round_to == 1:
            return closing
        return in_whole_steps(self._gated.plan, closing, self._gated.gone, log_alpha, round_to)

    def _is_worth_it(self, closing: Tensor) -> bool:
        if not bool(closing.any()):
            return False
        now, then = self._gated.cost_without(self._gated.gone), self._gated.cost_without(closing)
        return then.macs <= (1 - LEAST_GAIN) * now.macs

    def _cut(self, closing: Tensor, epoch: float) -> None:
        cut(self._session, self._gated, closing, "search", epoch, self._phase)


def cut(
    session: Session, gated: GatedModel, closing: Tensor, phase_name: str, epoch: float, phase: Phase | None = None
) -> None:
    """Cut gates out of the network for good; take along what a phase under way has gathered about it."""
    if not bool((closing & ~gated.gone).any()):
        return
    start = time.monotonic()
    gated.close(closing)
    narrowed = gated.shrink()
    if phase is not None:
        carry_over(phase.optimizers[0].optimizer, narrowed)
        if phase.average is not None:
            phase.average.carry_over(narrowed)
    session.history["cut"] = {"gone": gated.gone, "present": gated.present}
    share = gated.cost_without(gated.gone).macs / gated.dense_cost.macs
    entry = {"epoch": epoch, "step": session.global_step, "macs_share": share}
    session.history["compactions"] = [*session.history.get("compactions", []), entry]
    note_event(session, "compaction", epoch, phase_name, macs_share=share, gates_gone=int(gated.gone.sum()))
    seconds = time.monotonic() - start
    session.reporter.note(f"network made smaller: {share:.1%} of the MACs to train ({seconds:.2g} s)")


def cut_again(session: Session, gated: GatedModel) -> None:
    """Give the network of a resumed run the size that it had."""
    done = session.history.get("cut")
    if done is not None:
        gated.close(done["gone"])
        gated.shrink(done["present"])


def note_event(session: Session, event: str, epoch: float, phase: str = "search", **more: Any) -> None:
    """Write a line about something that happens once to ``metrics.jsonl``, with the seconds of the run so far."""
    line = {"event": event, "phase": phase, "epoch": epoch, "step": session.global_step, **more}
    if session.engine.is_main_process:
        session.folder.add_metrics({**line, "seconds": session.seconds})
