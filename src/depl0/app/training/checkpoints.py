"""Save and restore everything that a phase needs to continue bit-identically."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from depl0._util.random import seed_everything, set_random_state
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import fitting, save_checkpoint
from depl0.app.runtime.accelerator import rng_states
from depl0.app.runtime.guard import check, wrong_parameter
from depl0.app.runtime.network import match_state_layout
from depl0.app.training.phase import Phase
from depl0.app.training.session import Session
from depl0.gated import GatedModel
from depl0.surgery.extraction import carry_over


class Sums(NamedTuple):
    """Sums over the steps of an epoch, kept on the device until the epoch ends."""

    losses: Tensor
    """loss and task loss, times the number of examples, and that number"""
    measured: Tensor
    """the metric's own exact sums"""

    def plus(self, other: Sums | None) -> Sums:
        """Return the total of both."""
        return self if other is None else Sums(other.losses + self.losses, other.measured + self.measured)

    def over_processes(self, accelerator: Accelerator) -> Sums:
        """Return the sums over all processes of a run. All processes must call this together."""
        return Sums(*(accelerator.reduce(own, reduction="sum") for own in self))


def is_step_to_save(session: Session) -> bool:
    """Return True if ``run.checkpoint_steps`` requires a checkpoint after this step."""
    steps = session.recipe.run.checkpoint_steps
    return steps is not None and session.global_step % steps == 0


def is_checkpoint_due(session: Session) -> bool:
    """Return True if a checkpoint is due, by steps or by time."""
    if session.recipe.run.checkpoint_steps is not None:
        return is_step_to_save(session)
    return time.monotonic() - session.last_saved >= 60 * session.recipe.run.checkpoint_minutes


def save_phase(session: Session, phase: Phase, epoch: int, step: int, sums: Sums | None) -> None:
    """Write a checkpoint, unless a value is not finite. All processes must call this together."""
    check(session.accelerator, wrong_parameter(phase.model, session.global_step), phase.name)
    search = phase.search_state()
    if search is not None:
        session.state.search = search
    state = {
        "phase": phase.name,
        "epoch": epoch,
        "step": step,
        "sums": None if sums is None else _sums_of_all(session.accelerator, sums),
        "model": phase.model.state_dict(),
        "optimizers": [scheduled.optimizer.state_dict() for scheduled in phase.optimizers],
        "rates": [scheduled.lr for scheduled in phase.optimizers],
        "scaler": session.accelerator.scaler.state_dict() if session.accelerator.scaler is not None else None,
        "rng": rng_states(session.accelerator),
        "run": session.state.to_tree(),
        "seconds": session.seconds,
        "recipe": write_recipe(session.written),
        "metrics": session.folder.metrics.text(),
        "gates": session.folder.gates.text(),
    }
    if session.accelerator.is_main_process:
        folder, keep = session.folder.checkpoints, session.recipe.run.keep_checkpoints
        save_checkpoint(folder, session.global_step, state, keep)
    session.last_saved = time.monotonic()


def restore_phase(session: Session, phase: Phase) -> tuple[int, int, Sums | None]:
    """Restore a phase from the session's checkpoint; return epoch, step and the epoch's sums so far."""
    state = session.checkpoint_of(phase.name)
    if state is None:
        return 0, 0, None
    accelerator = session.accelerator
    with fitting(session.folder.checkpoints, session.global_step):
        _load_network(phase, state["model"])
        if session.state.search is not None:
            phase.load_search_state(session.state.search)
        for scheduled, saved, rate in zip(phase.optimizers, state["optimizers"], state["rates"], strict=True):
            scheduled.optimizer.load_state_dict(saved)
            match_state_layout(scheduled.optimizer)
            scheduled.lr = float(rate)
        if accelerator.scaler is not None and state["scaler"] is not None:
            accelerator.scaler.load_state_dict(state["scaler"])
        _restore_random(session, state["rng"])
        session.resumed = None
        return int(state["epoch"]), int(state["step"]), _restored_sums(accelerator, state["sums"])


def _sums_of_all(accelerator: Accelerator, sums: Sums) -> list[dict[str, Tensor]]:
    """Return the sums of every process separately, because another order of addition would round differently."""
    own = {name: value.cpu() for name, value in sums._asdict().items()}
    return [own] if accelerator.num_processes == 1 else list(gather_object([own]))


def _load_network(phase: Phase, state: dict[str, Any]) -> None:
    """Load a network's state. If that makes it smaller, adapt the objects that hold its parameters."""
    if not isinstance(phase.model, GatedModel):
        phase.model.load_state_dict(state)
        return
    before = phase.model.host_state()
    phase.model.load_state_dict(state)
    shrunk = phase.model.cut_since(before)
    if shrunk is None:
        return
    for scheduled in phase.optimizers:
        carry_over(scheduled.optimizer, shrunk)


def _restored_sums(accelerator: Accelerator, saved: list[dict[str, Tensor]] | None) -> Sums | None:
    if saved is None:
        return None
    if len(saved) == accelerator.num_processes:
        return Sums(*(saved[accelerator.process_index][name].to(accelerator.device) for name in Sums._fields))
    share = 1 if accelerator.is_main_process else 0  # saved with another number of processes: rank 0 gets the total
    totals = (torch.stack([one[name] for one in saved]).sum(0) for name in Sums._fields)
    return Sums(*(share * total.to(accelerator.device) for total in totals))


def _restore_random(session: Session, states: list[dict[str, Any]]) -> None:
    accelerator = session.accelerator
    if len(states) == accelerator.num_processes:
        set_random_state(states[accelerator.process_index])
        return
    session.reporter.note(
        f"this run had {len(states)} processes and now has {accelerator.num_processes}: it continues, but not bit for "
        "bit"
    )
    seed_everything(session.recipe.run.seed + session.global_step + accelerator.process_index)
