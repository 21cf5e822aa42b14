"""What all phases of a run share, and how a run is taken up again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from accelerate import Accelerator

from depl0.app.data import Data
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.background import BackgroundSaver
from depl0.app.runs.checkpoint import fitting, load_newest
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.progress import Reporter
from depl0.app.runs.state import RunState, from_history
from depl0.app.runtime.guard import NumberGuard
from depl0.app.runtime.processes import check_same
from depl0.app.tasks import Task
from depl0.app.training.phase import PHASES, PhaseName
from depl0.search.recovery.distillation import DistillationLoss


@dataclass
class Session:
    """What all phases of a run share."""

    recipe: Recipe
    engine: Accelerator
    data: Data
    task: Task
    folder: RunFolder
    reporter: Reporter
    distillation: DistillationLoss | None = None
    """from the dense network, during search and fine-tuning"""
    trained: bool = False
    """whether the dense network solved its task when the run began"""
    saver: BackgroundSaver | None = None
    """writes checkpoints while training goes on; the first process has one"""
    state: RunState = field(default_factory=RunState)
    """results of what is done already; goes into every checkpoint"""
    resumed: dict[str, Any] | None = None
    """the checkpoint to continue from, until the phase it belongs to has taken it up"""
    global_step: int = 0
    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    last_saved: float = field(default_factory=time.monotonic)
    stop_asked: bool = False
    guard: NumberGuard = field(default_factory=NumberGuard)
    next_look: int = 0
    last_look: tuple[int, float] = (0, 0.0)
    """step and time"""

    def wait_until_saved(self) -> None:
        """Return when every checkpoint is on the disk; raise what went wrong."""
        if self.saver is not None:
            self.saver.wait()

    @property
    def seconds(self) -> float:
        """Return the seconds spent on this run, earlier parts included."""
        return self.seconds_before + time.monotonic() - self.started

    def resume(self) -> None:
        """Look for a checkpoint to continue from."""
        main = self.engine.is_main_process
        found = load_newest(self.folder.checkpoints, self.reporter.note, mend=main)
        check_same(self.engine, "the checkpoint to go on from", str(found and found[0]))
        if found is None:
            self.reporter.note("nothing to resume: there is no whole checkpoint yet; starting from the beginning")
            if main:
                self.folder.begin(self.recipe)
            return
        self.global_step, self.resumed = found
        with fitting(self.folder.checkpoints, self.global_step):
            PHASES.index(self.resumed["phase"])
            self.state = state_of(self.resumed, self.data.train.steps)
            self.seconds_before = float(self.resumed["seconds"])
            recipe = str(self.resumed.get("recipe", write_recipe(self.recipe)))
            if "metrics" not in self.resumed:  # a checkpoint of 0.1.0
                self.resumed["metrics"] = self.folder.metrics_text(int(self.resumed["metrics_lines"]))
            metrics, gates = str(self.resumed["metrics"]), self.resumed.get("gates")
            gates_lines = int(self.resumed.get("gates_lines", 0))
        if main:
            self.folder.restore(recipe, metrics, None if gates is None else str(gates))
            missing = self.folder.gates.cut(gates_lines) if gates is None else 0
            if missing:
                self.reporter.note(f"gates.jsonl lacks {missing} lines that cannot be brought back")
        self.reporter.note(f"resumed from step {self.global_step}")

    @property
    def rate_factor(self) -> float:
        """Return what learning rates are multiplied by: a half for every rollback."""
        return 0.5 ** len(self.state.rollbacks)

    def is_past(self, phase: PhaseName) -> bool:
        """Tell whether a phase was finished before the checkpoint we continue from."""
        return self.resumed is not None and PHASES.index(self.resumed["phase"]) > PHASES.index(phase)

    def state_for(self, phase: PhaseName) -> dict[str, Any] | None:
        """Return the checkpoint if it was made in this phase."""
        return self.resumed if self.resumed is not None and self.resumed["phase"] == phase else None

    def note_event(self, event: str, epoch: float, phase: PhaseName = "search", **more: Any) -> None:
        """Write a line about something that happens once to ``metrics.jsonl``, with the seconds of the run so far."""
        line = {"event": event, "phase": phase, "epoch": epoch, "step": self.global_step, **more}
        if self.engine.is_main_process:
            self.folder.add_metrics({**line, "seconds": self.seconds})


def state_of(checkpoint: dict[str, Any], steps_per_epoch: int) -> RunState:
    """Return the run's state in a checkpoint, of today or older."""
    if "history" in checkpoint:
        return from_history(checkpoint, steps_per_epoch)
    return RunState.from_tree(checkpoint["run"])
