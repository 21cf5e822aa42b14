"""The session of a run, shared by all phases: opened once, saved, and resumed from a checkpoint to the bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from depl0._util.random import random_state, seed_everything, set_random_state
from depl0.app.data import Data
from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import load_newest, save_checkpoint, wrap_content_errors
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.paths import trust_code
from depl0.app.runs.progress import Reporter, logged
from depl0.app.runtime.execution import match_state_layout
from depl0.app.runtime.guard import check, wrong_parameter
from depl0.app.runtime.processes import (
    check_same,
    close_process_group,
    explain_failures,
    locked_on_first_rank,
    on_first_rank,
)
from depl0.app.tasks import Task
from depl0.app.training.phase import PHASES, Phase, PhaseName
from depl0.app.training.tracking import Trackers
from depl0.gated import GatedModel
from depl0.search.recovery.distillation import DistillationLoss
from depl0.surgery.extraction import carry_over


@final
@dataclass
class RunState:
    """Results of finished phases, which later phases use. They are part of every checkpoint, as plain values."""

    has_dense_score: bool = False
    dense_score: float | None = None
    dense_validation: float | None = None
    """the same on the held-out images, if any"""
    dense_right: list[int] | None = None
    """correct predictions of the dense network in each class, if it was trained beside the search"""
    search: dict[str, Any] | None = None
    """result of :meth:`depl0.Search.state_dict`"""
    frozen_gates: list[float] | None = None
    freezing: dict[str, Any] | None = None
    """effect of freezing the gates, as in ``summary.json``"""
    latency: dict[str, Any] | None = None
    compactions: list[dict[str, Any]] = field(default_factory=list)
    """epoch, step and remaining fraction of the MACs whenever the network became smaller"""
    record: str | None = None
    """how the compact network was cut, as JSON, while it is fine-tuned"""


@dataclass
class Session:
    """State shared by all phases of a run."""

    recipe: Recipe
    """the recipe with resolved paths"""
    accelerator: Accelerator
    data: Data
    task: Task
    folder: RunFolder
    reporter: Reporter
    trackers: Trackers
    distillation: DistillationLoss | None = None
    """distillation from the dense network, during search and fine-tuning"""
    trained: bool = False
    """whether the dense network solved its task when the run began"""
    state: RunState = field(default_factory=RunState)
    resumed: dict[str, Any] | None = None
    """the checkpoint to continue from, until its phase has restored it"""
    global_step: int = 0
    epoch: float = 0
    """epoch of the current phase, fractions included"""
    started: float = field(default_factory=time.monotonic)
    """as if the run had never been interrupted"""

    @property
    def seconds(self) -> float:
        """Return the seconds spent on this run, earlier parts included."""
        return time.monotonic() - self.started

    def resume(self) -> None:
        """Continue from the newest checkpoint, or from the beginning if there is none."""
        main = self.accelerator.is_main_process
        found = load_newest(self.folder.checkpoints, self.reporter.note)
        check_same(self.accelerator, "the checkpoint to resume from", str(found and found[0]))
        if found is None:
            self.reporter.note("nothing to resume: no checkpoint yet; starting from the beginning")
            if main:
                self.folder.begin(self.recipe)
            return
        self.global_step, self.resumed = found
        with wrap_content_errors(f"the checkpoint of step {self.global_step} in {self.folder.path}"):
            PHASES.index(self.resumed["phase"])
            self.state = RunState(**self.resumed["run"])
            self.started -= float(self.resumed["seconds"])
            texts = [str(self.resumed[name]) for name in ("recipe", "metrics", "gates")]
        if main:
            self.folder.restore(*texts)
        self.reporter.note(f"resumed from step {self.global_step}")

    def is_past(self, phase: PhaseName) -> bool:
        """Return True if a phase had finished before the checkpoint to continue from."""
        return self.resumed is not None and PHASES.index(self.resumed["phase"]) > PHASES.index(phase)

    def checkpoint_of(self, phase: PhaseName) -> dict[str, Any] | None:
        """Return the checkpoint to continue from if it was made in this phase."""
        return self.resumed if self.resumed is not None and self.resumed["phase"] == phase else None

    def log_event(self, event: str, epoch: float, phase: PhaseName = "search", **more: Any) -> None:
        """Write a line about a single event to ``metrics.jsonl``, with the time of the run so far."""
        line = {"event": event, "phase": phase, "epoch": epoch, "step": self.global_step, **more}
        if self.accelerator.is_main_process:
            self.folder.metrics.add({**line, "seconds": self.seconds})


@contextmanager
def open_session(
    recipe: Recipe,
    accelerator: Accelerator,
    data: Data,
    folder: RunFolder,
    *,
    goes_on: bool,
    resume: bool,
    reporter: Reporter,
) -> Iterator[Session]:
    """Open and lock a run folder, and resume it if it ``goes_on``. Trackers and processes end with the context."""
    with locked_on_first_rank(folder.path, accelerator), explain_failures(accelerator, folder):
        shown = logged(reporter, folder.path / "log.txt") if accelerator.is_main_process else Reporter()
        trackers = Trackers(shown.note)
        session = Session(recipe, accelerator, data, task_of(recipe), folder, shown, trackers)
        try:
            on_first_rank(accelerator, lambda: _begin(session, goes_on))
            if goes_on:
                session.resume()
            elif resume:  # reported only now, because the log is in the folder
                shown.note(f"nothing to resume: {folder.path} holds no run yet; starting from the beginning")
            yield session
        finally:
            trackers.finish()
            close_process_group()


def _begin(session: Session, goes_on: bool) -> None:
    """Start the trackers, and write the recipe to a new folder unless another process has begun a run there."""
    folder = session.folder
    trust_code(session.recipe)
    if not goes_on:
        open_run(folder.path, session.recipe, resume=False)
    session.trackers.start(session.recipe, folder.path)  # may fail, so before the folder holds a run
    if not goes_on:
        folder.begin(session.recipe)


# -- checkpoints -------------------------------------------------------------------------------------------------------


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


def save_phase(session: Session, phase: Phase, epoch: int, step: int, sums: Sums | None) -> None:
    """Write a checkpoint, unless a value is not finite. All processes must call this together."""
    check(session.accelerator, wrong_parameter(phase.model, session.global_step), phase.name)
    if phase.search is not None:
        session.state.search = phase.search.state_dict()
    state = {
        "phase": phase.name,
        "epoch": epoch,
        "step": step,
        "sums": None if sums is None else _of_all(session.accelerator, {k: v.cpu() for k, v in sums._asdict().items()}),
        "model": phase.model.state_dict(),
        "optimizers": [scheduled.optimizer.state_dict() for scheduled in phase.optimizers],
        "rates": [scheduled.lr for scheduled in phase.optimizers],
        "scaler": session.accelerator.scaler.state_dict() if session.accelerator.scaler is not None else None,
        "rng": _of_all(session.accelerator, random_state()),
        "run": vars(session.state),
        "seconds": session.seconds,
        "recipe": write_recipe(session.recipe),
        "metrics": session.folder.metrics.text(),
        "gates": session.folder.gates.text(),
    }
    if session.accelerator.is_main_process:
        save_checkpoint(session.folder.checkpoints, session.global_step, state, session.recipe.run.keep_checkpoints)


def restore_phase(session: Session, phase: Phase) -> tuple[int, int, Sums | None]:
    """Restore a phase from the session's checkpoint; return epoch, step and the epoch's sums so far."""
    state = session.checkpoint_of(phase.name)
    if state is None:
        return 0, 0, None
    accelerator = session.accelerator
    with wrap_content_errors(f"the checkpoint of step {session.global_step} in {session.folder.path}"):
        _load_network(phase, state["model"])
        if phase.search is not None and session.state.search is not None:
            phase.search.load_state_dict(session.state.search)
        for scheduled, saved, rate in zip(phase.optimizers, state["optimizers"], state["rates"], strict=True):
            scheduled.optimizer.load_state_dict(saved)
            match_state_layout(scheduled.optimizer)
            scheduled.lr = float(rate)
        if accelerator.scaler is not None and state["scaler"] is not None:
            accelerator.scaler.load_state_dict(state["scaler"])
        _restore_random(session, state["rng"])
        session.resumed = None
        return int(state["epoch"]), int(state["step"]), _restored_sums(accelerator, state["sums"])


def _of_all(accelerator: Accelerator, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values of every process separately: sums in another order of addition would round differently."""
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
    """Return the sums of this process; with fewer processes than before, the others' part of the epoch is left out."""
    if saved is None or accelerator.process_index >= len(saved):
        return None
    return Sums(*(saved[accelerator.process_index][name].to(accelerator.device) for name in Sums._fields))


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
