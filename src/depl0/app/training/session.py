"""The session of a run, shared by all phases: opened once, and resumed from a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from accelerate import Accelerator

from depl0.app.data import Data
from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.runs.checkpoint import fitting, load_newest
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.paths import resolve_paths, trust_code
from depl0.app.runs.progress import Logged, Quiet, Reporter
from depl0.app.runs.state import RunState
from depl0.app.runtime.accelerator import close_process_group
from depl0.app.runtime.guard import NumberGuard
from depl0.app.runtime.processes import check_same, exclusive, explain_failures
from depl0.app.tasks import Task
from depl0.app.training.phase import PHASES, PhaseName
from depl0.app.training.tracking import finish_trackers, start_trackers
from depl0.search.recovery.distillation import DistillationLoss


@dataclass
class Session:
    """State shared by all phases of a run."""

    recipe: Recipe
    """the recipe with resolved paths"""
    written: Recipe
    """the recipe as it is written to the folder"""
    accelerator: Accelerator
    data: Data
    task: Task
    folder: RunFolder
    reporter: Reporter
    distillation: DistillationLoss | None = None
    """distillation from the dense network, during search and fine-tuning"""
    trained: bool = False
    """whether the dense network solved its task when the run began"""
    state: RunState = field(default_factory=RunState)
    """results so far; part of every checkpoint"""
    resumed: dict[str, Any] | None = None
    """the checkpoint to continue from, until its phase has restored it"""
    global_step: int = 0
    epoch: float = 0
    """epoch of the current phase, fractions included"""
    started: float = field(default_factory=time.monotonic)
    """as if the run had never been interrupted"""
    last_saved: float = field(default_factory=time.monotonic)
    guard: NumberGuard = field(default_factory=NumberGuard)
    next_check: int = 0
    last_check: tuple[int, float] = (0, 0.0)
    """step and time of the last check"""

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
                self.folder.begin(self.written)
            return
        self.global_step, self.resumed = found
        with fitting(self.folder.checkpoints, self.global_step):
            PHASES.index(self.resumed["phase"])
            self.state = RunState.from_tree(self.resumed["run"])
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
    reporter: Reporter | None,
) -> Iterator[Session]:
    """Open and lock a run folder, and resume it if it ``goes_on``; trackers and checkpoints end with the context."""
    with exclusive(folder.path, accelerator), explain_failures(accelerator, folder):
        shown: Reporter = reporter if reporter and accelerator.is_main_process else Quiet()
        if accelerator.is_main_process:
            shown = Logged(shown, folder.path / "log.txt")
        resolved = resolve_paths(recipe, folder.path)
        session = Session(resolved, recipe, accelerator, data, task_of(resolved), folder, shown)
        if accelerator.is_main_process:
            trust_code(resolved)
        elsewhere = [name for name in resolved.run.trackers if name != "tensorboard"]
        start_trackers(accelerator, resolved, folder.path, elsewhere)  # may fail, so before the run starts
        if goes_on:
            session.resume()
        else:
            _begin(session, resume)
        start_trackers(accelerator, resolved, folder.path, set(resolved.run.trackers) & {"tensorboard"})
        for warning in data.info.warnings():
            session.reporter.note(f"warning: {warning}")
        try:
            yield session
        finally:
            finish_trackers(accelerator)
            close_process_group()


def _begin(session: Session, resume: bool) -> None:
    """Write the recipe to the folder, unless another process has done so since the check."""
    folder = session.folder
    if session.accelerator.is_main_process:
        open_run(str(folder.path), session.written, resume=False)
        folder.begin(session.written)
    if resume:  # reported only now, because the log is in the folder
        session.reporter.note(f"nothing to resume: {folder.path} holds no run yet; starting from the beginning")
