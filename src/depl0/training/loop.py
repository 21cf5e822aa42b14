"""The training loop: one readable path for dense training, search and fine-tuning alike."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from depl0.data import Data
from depl0.errors import RunInterruptedError
from depl0.recipes.recipe import Recipe
from depl0.recipes.toml import write_recipe
from depl0.runs.checkpoint import fitting, load_newest, save_checkpoint
from depl0.runs.folder import RunFolder
from depl0.runs.progress import Reporter
from depl0.runtime import memory_format
from depl0.runtime.compiling import compiled
from depl0.runtime.engine import (
    any_process,
    prepare,
    rng_states,
    seed_everything,
    set_rng_state,
    share_buffers,
    take_back,
)
from depl0.runtime.guard import Watch, check, explained_batches, wrong_parameter
from depl0.runtime.processes import check_same
from depl0.runtime.sync_norm import synced_norms
from depl0.training.distill import Distillation
from depl0.training.ema import Average
from depl0.training.evaluate import class_scores, evaluate
from depl0.training.schedules import Schedule

PHASES = ("dense", "search", "finetune")
_LOOK_EVERY = 20
"""steps between two looks at the loss; each look waits for the device"""
_LOOK_SECONDS = 5.0
"""several processes look at least about so often, since only then they hear that they are asked to stop"""


@dataclass
class Rated:
    """An optimizer with its first learning rate and its schedule."""

    name: str
    optimizer: Any
    lr: float
    schedule: Schedule

    def set_rate(self, epoch: float) -> None:
        """Set the learning rate for a point in time, in epochs."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.schedule(epoch)


@dataclass
class Phase:
    """One stretch of training."""

    name: str
    model: nn.Module
    optimizers: list[Rated]
    """the weights' first"""
    epochs: int
    loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """(outputs, labels) -> (loss to minimise, task loss)"""
    before_step: Callable[[float], None] = lambda fraction: None
    """is told the share of the phase that has passed"""
    after_epoch: Callable[[], None] = lambda: None
    """is called after an epoch's last step, before the network is evaluated and saved"""
    describe: Callable[[], dict[str, Any]] = dict
    """more to write down after an epoch"""
    gates: Callable[[], dict[str, Any]] | None = None
    """what goes to ``gates.jsonl`` at the start and after an epoch"""
    clip_norm: float | None = None
    """of the weights' gradient"""
    average: Average | None = None
    distillation: Distillation | None = None
    some_rest: bool = False
    """whether there are steps in which not every parameter gets a gradient"""
    rebuild: Callable[[float], Callable[[], None] | None] = lambda epoch: None
    """is told the epochs that have passed; gives what rebuilds the network before the next step, or None"""
    run: nn.Module | None = None
    """what a step calls, where that is not the model itself but something around it"""


@dataclass
class Session:
    """What all phases of a run share."""

    recipe: Recipe
    engine: Accelerator
    data: Data
    folder: RunFolder
    reporter: Reporter
    distillation: Distillation | None = None
    """from the dense network, during search and fine-tuning"""
    history: dict[str, Any] = field(default_factory=dict)
    """results of what is done already; goes into every checkpoint"""
    resumed: dict[str, Any] | None = None
    """the checkpoint to continue from, until the phase it belongs to has taken it up"""
    global_step: int = 0
    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    last_saved: float = field(default_factory=time.monotonic)
    stop_asked: bool = False
    watch: Watch = field(default_factory=Watch)
    next_look: int = 0
    last_look: tuple[int, float] = (0, 0.0)
    """step and time"""

    @property
    def seconds(self) -> float:
        """Return the seconds spent on this run, earlier parts included."""
        return self.seconds_before + time.monotonic() - self.started

    def take_up(self) -> None:
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
            self.history = dict(self.resumed["history"])
            self.seconds_before = float(self.resumed["seconds"])
            recipe = str(self.resumed.get("recipe", write_recipe(self.recipe)))
            if "metrics" not in self.resumed:  # a checkpoint of 0.1.0
                self.resumed["metrics"] = self.folder.metrics_text(int(self.resumed["metrics_lines"]))
            metrics, gates_lines = str(self.resumed["metrics"]), int(self.resumed.get("gates_lines", 0))
        if main:
            self.folder.restore(recipe, metrics)
            self.folder.gates.cut(gates_lines)
        self.reporter.note(f"resumed from step {self.global_step}")

    @property
    def rate_factor(self) -> float:
        """Return what learning rates are multiplied by: a half for every rollback."""
        return 0.5 ** len(self.history.get("rollbacks", ()))

    def is_past(self, phase: str) -> bool:
        """Tell whether a phase was finished before the checkpoint we continue from."""
        return self.resumed is not None and PHASES.index(self.resumed["phase"]) > PHASES.index(phase)

    def state_for(self, phase: str) -> dict[str, Any] | None:
        """Return the checkpoint if it was made in this phase."""
        return self.resumed if self.resumed is not None and self.resumed["phase"] == phase else None


def run_phase(session: Session, phase: Phase) -> None:
    """Train for the phase's epochs, from where a checkpoint left off if there is one."""
    with synced_norms(phase.model, session.recipe.run.sync_bn):
        _run_phase(session, phase)


def _run_phase(session: Session, phase: Phase) -> None:
    engine, batches, is_new = session.engine, session.data.train, session.state_for(phase.name) is None
    wrapped = _ready(session, phase)
    epoch, first_step, sums = _restore(session, phase)
    for rated in phase.optimizers:
        rated.lr *= session.rate_factor
    session.reporter.begin(phase.name, phase.epochs, batches.steps, epoch * batches.steps + first_step)
    if is_new:
        _write_gates(session, phase, 0)
    try:
        with _asked_to_stop(session):
            if is_new and session.recipe.run.on_nan == "rollback":  # there must be something to go back to
                _save(session, phase, epoch, first_step, sums)
            while epoch < phase.epochs:
                start = time.monotonic()
                wrapped.train()
                for step, (images, labels) in enumerate(batches.epoch(epoch, first_step), start=first_step):
                    passed = epoch + step / batches.steps
                    rebuild = phase.rebuild(passed)
                    if rebuild is not None:
                        del wrapped  # nothing may hold on to the parameters that are replaced
                        take_back(engine, phase.run or phase.model)
                        rebuild()
                        wrapped = _ready(session, phase)
                        wrapped.train()
                    for rated in phase.optimizers:
                        rated.set_rate(passed)
                    phase.before_step(passed / phase.epochs)
                    sums += train_step(session, phase, wrapped, images, labels)
                    session.global_step += 1
                    session.reporter.step()
                    _look_after(session, phase, epoch, step + 1, sums)
                phase.after_epoch()
                _write_epoch(session, phase, epoch + 1, sums, time.monotonic() - start)
                epoch, first_step, sums = epoch + 1, 0, torch.zeros_like(sums)
                stop, due = any_process(engine, session.stop_asked, _checkpoint_is_due(session))
                if epoch == phase.epochs or due or stop:
                    _save(session, phase, epoch, 0, sums)
                if stop:  # asked while the epoch was evaluated
                    raise _interrupted(session)
    finally:
        session.reporter.end()
        take_back(engine, phase.run or phase.model)
    if phase.average is not None:
        phase.average.copy_to_model()


def _ready(session: Session, phase: Phase) -> nn.Module:
    """Make a phase ready for its next step, when it begins or its network was rebuilt; return what a step calls."""
    memory_format.lay_out(phase.model, session.history.get("channels_last", False))
    for rated in phase.optimizers:
        memory_format.lay_out_state(rated.optimizer)
    wrapped = hand_over(session.engine, phase)
    return compiled(wrapped, session.engine.device) if session.recipe.run.compile else wrapped


def hand_over(engine: Accelerator, phase: Phase) -> nn.Module:
    """Give the network and its optimizers to the engine; return the network as the engine runs it."""
    optimizers = [rated.optimizer for rated in phase.optimizers]
    wrapped, prepared = prepare(engine, phase.run or phase.model, optimizers, phase.some_rest)
    for rated, optimizer in zip(phase.optimizers, prepared, strict=True):
        rated.optimizer = optimizer
    return wrapped


def train_step(session: Session, phase: Phase, wrapped: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Do one step; return (loss, task loss, correct, images) as sums, without waiting for the device."""
    engine = session.engine
    with engine.autocast(), explained_batches():
        outputs = wrapped(images)
        loss, task_loss = phase.loss(outputs, labels)
        if phase.distillation is not None:
            loss = phase.distillation.mixed(loss, task_loss, images, outputs)
    engine.backward(loss)
    if phase.clip_norm is not None:
        weights = phase.optimizers[0].optimizer
        engine.unscale_gradients(weights)  # of these alone: the gates' optimizer unscales its own when it steps
        nn.utils.clip_grad_norm_([p for group in weights.param_groups for p in group["params"]], phase.clip_norm)
    session.watch.keep(loss, task_loss, [rated.optimizer for rated in phase.optimizers], engine.scaler is not None)
    for rated in phase.optimizers:
        rated.optimizer.step()
        rated.optimizer.zero_grad(set_to_none=True)
    if phase.average is not None:
        phase.average.update()
    losses = torch.stack([loss.detach().float(), task_loss.detach().float()])
    correct = (class_scores(outputs).detach().argmax(1) == labels).sum()
    return torch.cat([losses * len(labels), correct.view(1), torch.full_like(losses[:1], len(labels))])


def _look_after(session: Session, phase: Phase, epoch: int, step: int, sums: Tensor) -> None:
    """Stop on numbers that are none, or on request; save when it is time."""
    last = step == session.data.train.steps
    asked = session.stop_asked and session.engine.num_processes == 1  # many of them stop together, at a look
    if not (last or asked or _is_time_to_look(session) or _is_step_to_save(session)):
        return
    names = [rated.name for rated in phase.optimizers]
    where = f"{phase.name}, epoch {epoch + 1}, learning rate {phase.optimizers[0].optimizer.param_groups[0]['lr']:g}"
    session.watch.look(session.engine, phase.model, session.global_step, names, where)
    stop, due = any_process(session.engine, session.stop_asked, _checkpoint_is_due(session))
    if stop or (due and not last):
        _save(session, phase, epoch, step, sums)
    if stop:
        raise _interrupted(session)


def _interrupted(session: Session) -> RunInterruptedError:
    return RunInterruptedError(
        f"interrupted at step {session.global_step}; everything is saved in {session.folder.path}.",
        hint="go on with the same command and --resume.",
    )


def _is_time_to_look(session: Session) -> bool:
    """Tell whether to look now: all processes must come to the same answer, each by itself."""
    if session.engine.num_processes == 1:
        return session.global_step % _LOOK_EVERY == 0
    if session.global_step < session.next_look:
        return False
    (step, then), now = session.last_look, time.monotonic()
    rate = (session.global_step - step) / max(now - then, 1e-3)
    wanted = torch.tensor(float(min(rate * _LOOK_SECONDS, _LOOK_EVERY)), device=session.engine.device)
    steps = float(session.engine.reduce(wanted, reduction="mean")) if then else 1.0
    session.next_look, session.last_look = session.global_step + max(1, int(steps)), (session.global_step, now)
    return True


def _write_epoch(session: Session, phase: Phase, epoch: int, sums: Tensor, seconds: float) -> None:
    engine = session.engine
    loss, task_loss, correct, count = engine.reduce(sums, reduction="sum").tolist()
    share_buffers(engine, phase.model)
    with phase.average.swapped_in() if phase.average is not None else nullcontext():
        accuracy = evaluate(engine, phase.model, session.data.test.epoch(0))
    line: dict[str, Any] = {
        "phase": phase.name,
        "method": session.recipe.gates.method,
        "epoch": epoch,
        "step": session.global_step,
        "loss": loss / count,
        "task_loss": task_loss / count,
        "train_accuracy": 100.0 * correct / count,
        "test_accuracy": accuracy,
        **{f"{rated.name}_lr": rated.optimizer.param_groups[0]["lr"] for rated in phase.optimizers},
        **phase.describe(),
        "seconds": seconds,
    }
    if engine.is_main_process:
        session.folder.add_metrics(line)
        engine.log(_scalars(phase.name, line), step=session.global_step)
    _write_gates(session, phase, epoch)
    session.reporter.epoch(line)


def _write_gates(session: Session, phase: Phase, epoch: int) -> None:
    if phase.gates is not None and session.engine.is_main_process:
        where = {"phase": phase.name, "epoch": epoch, "step": session.global_step}
        session.folder.gates.add({**where, **phase.gates()})


def _scalars(phase: str, line: dict[str, Any]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{phase}/{key}/{k}": float(v) for k, v in value.items() if isinstance(v, (int, float))}
        elif isinstance(value, (int, float)):
            flat[f"{phase}/{key}"] = float(value)
    return flat


# -- checkpoints -----------------------------------------------------------------------------------------------------


def _is_step_to_save(session: Session) -> bool:
    steps = session.recipe.run.checkpoint_steps
    return steps is not None and session.global_step % steps == 0


def _checkpoint_is_due(session: Session) -> bool:
    if session.recipe.run.checkpoint_steps is not None:
        return _is_step_to_save(session)
    return time.monotonic() - session.last_saved >= 60 * session.recipe.run.checkpoint_minutes


def _save(session: Session, phase: Phase, epoch: int, step: int, sums: Tensor) -> None:
    """Write a checkpoint, if it is a good one. All processes call this together."""
    check(session.engine, wrong_parameter(phase.model, session.global_step), phase.name)
    state = {
        "phase": phase.name,
        "epoch": epoch,
        "step": step,
        "sums": session.engine.reduce(sums, reduction="sum"),
        "model": phase.model.state_dict(),
        "optimizers": [rated.optimizer.state_dict() for rated in phase.optimizers],
        "average": phase.average.state() if phase.average is not None else None,
        "scaler": session.engine.scaler.state_dict() if session.engine.scaler is not None else None,
        "rng": rng_states(session.engine),
        "history": session.history,
        "seconds": session.seconds,
        "recipe": write_recipe(session.recipe),
        "metrics": session.folder.metrics_text(),
        "gates_lines": session.folder.gates.count(),
    }
    if session.engine.is_main_process:
        save_checkpoint(session.folder.checkpoints, session.global_step, state, session.recipe.run.keep_checkpoints)
    session.last_saved = time.monotonic()


def _restore(session: Session, phase: Phase) -> tuple[int, int, Tensor]:
    sums = torch.zeros(4, device=session.engine.device)
    state = session.state_for(phase.name)
    if state is None:
        return 0, 0, sums
    with fitting(session.folder.checkpoints, session.global_step):
        phase.model.load_state_dict(state["model"])
        for rated, saved in zip(phase.optimizers, state["optimizers"], strict=True):
            rated.optimizer.load_state_dict(saved)
            memory_format.lay_out_state(rated.optimizer)
        if phase.average is not None:
            phase.average.load_state(state["average"])
        if session.engine.scaler is not None and state["scaler"] is not None:
            session.engine.scaler.load_state_dict(state["scaler"])
        _restore_random(session, state["rng"])
        session.resumed = None
        if session.engine.is_main_process:  # the sums of all processes are in one
            sums += state["sums"].to(sums.device)
        return int(state["epoch"]), int(state["step"]), sums


def _restore_random(session: Session, states: list[dict[str, Any]]) -> None:
    engine = session.engine
    if len(states) == engine.num_processes:
        set_rng_state(engine, states[engine.process_index])
        return
    session.reporter.note(
        f"this run had {len(states)} processes and has {engine.num_processes} now: it goes on, but not bit for bit"
    )
    seed_everything(session.recipe.run.seed + session.global_step, engine.process_index)


@contextmanager
def _asked_to_stop(session: Session) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into a request that is honoured after the present step."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: Any) -> None:
        if session.stop_asked:  # asked twice: at once, then
            raise KeyboardInterrupt
        session.stop_asked = True

    before = {name: signal.signal(name, ask) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
