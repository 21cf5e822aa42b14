"""The training loop: one readable path for dense training, search and fine-tuning alike."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.distributed import share_buffers
from depl0._util.random import seed_everything, set_random_state
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import fitting
from depl0.app.runtime import memory_format
from depl0.app.runtime.compiling import compiled
from depl0.app.runtime.engine import any_process, prepare, rng_states, take_back
from depl0.app.runtime.guard import check, explained_batches, wrong_parameter
from depl0.app.runtime.sync_norm import synced_norms
from depl0.app.training.evaluate import evaluate
from depl0.app.training.phase import Phase
from depl0.app.training.session import Session
from depl0.errors import RunInterruptedError

_LOOK_EVERY = 20
"""steps between two looks at the loss; each look waits for the device"""
_LOOK_SECONDS = 5.0
"""several processes look at least about so often, since only then they hear that they are asked to stop"""


def run_phase(session: Session, phase: Phase) -> None:
    """Train for the phase's epochs, from where a checkpoint left off if there is one."""
    with synced_norms(phase.model, session.recipe.run.sync_bn):
        _run_phase(session, phase)


def _run_phase(session: Session, phase: Phase) -> None:
    engine, batches, is_new = session.engine, session.data.train, session.state_for(phase.name) is None
    epoch, first_step, sums = _restore(session, phase)  # first, because it may bring the network to a smaller size
    wrapped = _ready(session, phase)
    for scheduled in phase.optimizers:
        scheduled.lr *= session.rate_factor
    session.reporter.begin(
        phase.name, phase.epochs, batches.steps, epoch * batches.steps + first_step, session.task.metric
    )
    if is_new and phase.epochs == 0:
        _write_gates(session, phase, 0)
    try:
        with _asked_to_stop(session):
            if is_new and session.recipe.run.on_nan == "rollback":  # there must be something to go back to
                _save(session, phase, epoch, first_step, sums)
            while epoch < phase.epochs:
                start = time.monotonic()
                wrapped.train()
                for step, (inputs, targets) in enumerate(batches.epoch(epoch, first_step), start=first_step):
                    if phase.before_step():  # parameters were replaced: wrap the network anew
                        del wrapped
                        take_back(engine, phase.called)
                        wrapped = _ready(session, phase)
                        wrapped.train()
                    if epoch == 0 and step == 0:  # gates move by now, unless a warm-up holds them open
                        _write_gates(session, phase, 0)
                    for scheduled in phase.optimizers:
                        scheduled.set_rate(epoch + step / batches.steps)
                    sums = train_step(session, phase, wrapped, inputs, targets).plus(sums)
                    session.global_step += 1
                    session.reporter.step()
                    _look_after(session, phase, epoch, step + 1, sums)
                phase.after_epoch()
                _write_epoch(session, phase, epoch + 1, sums, time.monotonic() - start)
                epoch, first_step, sums = epoch + 1, 0, None
                stop, due = any_process(engine, session.stop_asked, _checkpoint_is_due(session))
                if epoch == phase.epochs or due or stop:
                    _save(session, phase, epoch, 0, sums)
                if stop:  # asked while the epoch was evaluated
                    raise _interrupted(session)
        session.wait_until_saved()
    finally:
        session.reporter.end()
        take_back(engine, phase.called)
    if phase.average is not None:
        phase.average.copy_to_model()


def _ready(session: Session, phase: Phase) -> nn.Module:
    """Make a phase ready for its next step, when it begins or its network was rebuilt; return what a step calls."""
    memory_format.lay_out(phase.model, bool(session.state.channels_last))
    for scheduled in phase.optimizers:
        memory_format.lay_out_state(scheduled.optimizer)
    wrapped = hand_over(session.engine, phase)
    return compiled(wrapped, session.engine.device) if session.recipe.run.compile else wrapped


def hand_over(engine: Accelerator, phase: Phase) -> nn.Module:
    """Give the network and its optimizers to the engine; return the network as the engine runs it."""
    optimizers = [scheduled.optimizer for scheduled in phase.optimizers]
    wrapped, prepared = prepare(engine, phase.called, optimizers, phase.some_unused)
    for scheduled, optimizer in zip(phase.optimizers, prepared, strict=True):
        scheduled.optimizer = optimizer
    return wrapped


class Sums(NamedTuple):
    """What the steps of an epoch add up to; nobody waits for it before the epoch is over."""

    losses: Tensor
    """loss and task loss, times the number of examples, and that number"""
    measured: Tensor
    """the metric's own sums, exact"""

    def plus(self, other: Sums | None) -> Sums:
        """Return both together."""
        return self if other is None else Sums(other.losses + self.losses, other.measured + self.measured)

    def over_processes(self, engine: Accelerator) -> Sums:
        """Return what the processes of a run add up to; all of them call this together."""
        return Sums(engine.reduce(self.losses, reduction="sum"), engine.reduce(self.measured, reduction="sum"))


def train_step(session: Session, phase: Phase, wrapped: nn.Module, inputs: Any, targets: Any) -> Sums:
    """Do one step; return its share of the epoch's sums, without waiting for the device."""
    engine, teacher = session.engine, phase.distillation
    with engine.autocast(), explained_batches():
        with teacher.watch(phase.model) if teacher is not None else nullcontext({}) as blocks:
            outputs = wrapped(inputs)
        losses = phase.loss(outputs, targets)
        loss = losses.total
        if teacher is not None:  # penalties stay beside it
            loss = loss - losses.task + teacher(losses.task, losses.outputs, inputs, blocks)
    engine.backward(loss)
    if phase.clip_norm is not None:
        weights = phase.optimizers[0].optimizer
        engine.unscale_gradients(weights)  # of these alone: the gates' optimizer unscales its own when it steps
        nn.utils.clip_grad_norm_([p for group in weights.param_groups for p in group["params"]], phase.clip_norm)
    session.guard.keep(loss, losses.task, [s.optimizer for s in phase.optimizers], engine.scaler is not None)
    for scheduled in phase.optimizers:
        scheduled.optimizer.step()
        scheduled.optimizer.zero_grad(set_to_none=True)
    if phase.average is not None:
        phase.average.update()
    with torch.no_grad():
        measured = session.task.measure(losses.outputs, targets)
    both = torch.stack([loss.detach().float(), losses.task.detach().float()])
    count = next(len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))
    return Sums(torch.cat([both * count, torch.full_like(both[:1], count)]), measured)


def _look_after(session: Session, phase: Phase, epoch: int, step: int, sums: Sums) -> None:
    """Stop on non-finite values, or on request; save when it is time."""
    last = step == session.data.train.steps
    asked = session.stop_asked and session.engine.num_processes == 1  # many of them stop together, at a look
    if not (last or asked or _is_time_to_look(session) or _is_step_to_save(session)):
        return
    names = [scheduled.name for scheduled in phase.optimizers]
    where = f"{phase.name}, epoch {epoch + 1}, learning rate {phase.optimizers[0].optimizer.param_groups[0]['lr']:g}"
    session.guard.look(session.engine, phase.model, session.global_step, names, where)
    if not last:
        session.reporter.progress(_progress(session, phase, epoch, step, sums))
    stop, due = any_process(session.engine, session.stop_asked, _checkpoint_is_due(session))
    if stop or (due and not last):
        _save(session, phase, epoch, step, sums)
    if stop:
        raise _interrupted(session)


def _progress(session: Session, phase: Phase, epoch: int, step: int, sums: Sums) -> dict[str, Any]:
    """Return where an epoch is, of this process's own images; the look before has waited for the device already."""
    loss, _, count = sums.losses.tolist()
    return {
        "epoch": epoch + 1,
        "step": step,
        "steps": session.data.train.steps,
        "loss": loss / count,
        f"train_{session.task.metric.name}": session.task.value(sums.measured),
        "lr": phase.optimizers[0].optimizer.param_groups[0]["lr"],
    }


def _interrupted(session: Session) -> RunInterruptedError:
    session.wait_until_saved()
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


def _write_epoch(session: Session, phase: Phase, epoch: int, sums: Sums | None, seconds: float) -> None:
    engine = session.engine
    assert sums is not None, "an epoch has at least one step"
    total = sums.over_processes(engine)
    loss, task_loss, count = total.losses.tolist()
    metric = session.task.metric.name
    share_buffers(phase.model)
    with phase.average.swapped_in() if phase.average is not None else nullcontext():
        score = evaluate(engine, phase.model, session.data.for_choices.epoch(0), session.task)
    line: dict[str, Any] = {
        "phase": phase.name,
        "method": session.recipe.gates.method,
        "epoch": epoch,
        "step": session.global_step,
        "loss": loss / count,
        "task_loss": task_loss / count,
        f"train_{metric}": session.task.value(total.measured),
        f"{session.data.split}_{metric}": score,
        **{f"{scheduled.name}_lr": scheduled.optimizer.param_groups[0]["lr"] for scheduled in phase.optimizers},
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


def _save(session: Session, phase: Phase, epoch: int, step: int, sums: Sums | None) -> None:
    """Write a checkpoint, if it is a good one. All processes call this together."""
    check(session.engine, wrong_parameter(phase.model, session.global_step), phase.name)
    if phase.state is not None:
        session.state.search = phase.state()
    state = {
        "phase": phase.name,
        "epoch": epoch,
        "step": step,
        "sums": None if sums is None else _sums_of_all(session.engine, sums),
        "model": phase.model.state_dict(),
        "optimizers": [scheduled.optimizer.state_dict() for scheduled in phase.optimizers],
        "rates": [scheduled.lr / session.rate_factor for scheduled in phase.optimizers],
        "average": phase.average.state() if phase.average is not None else None,
        "scaler": session.engine.scaler.state_dict() if session.engine.scaler is not None else None,
        "rng": rng_states(session.engine),
        "run": session.state.to_tree(),
        "seconds": session.seconds,
        "recipe": write_recipe(session.recipe),
        "metrics": session.folder.metrics_text(),
        "gates": session.folder.gates.text(),
    }
    if session.saver is not None:
        session.saver.save(session.global_step, state)
    session.last_saved = time.monotonic()


def _restore(session: Session, phase: Phase) -> tuple[int, int, Sums | None]:
    state = session.state_for(phase.name)
    if state is None:
        return 0, 0, None
    with fitting(session.folder.checkpoints, session.global_step):
        phase.model.load_state_dict(state["model"])
        if phase.load_state is not None and session.state.search is not None:
            phase.load_state(session.state.search)
        for scheduled, saved in zip(phase.optimizers, state["optimizers"], strict=True):
            scheduled.optimizer.load_state_dict(saved)
            memory_format.lay_out_state(scheduled.optimizer)
        _restore_rates(session, phase, state)
        if phase.average is not None:
            phase.average.load_state(state["average"])
        if session.engine.scaler is not None and state["scaler"] is not None:
            session.engine.scaler.load_state_dict(state["scaler"])
        _restore_random(session, state["rng"])
        session.resumed = None
        return int(state["epoch"]), int(state["step"]), _restored_sums(session, state["sums"])


def _restore_rates(session: Session, phase: Phase, state: dict[str, Any]) -> None:
    """Go on with the first learning rates that the run began with, however such rates are chosen today."""
    rates = state.get("rates")
    if rates is not None:
        for scheduled, rate in zip(phase.optimizers, rates, strict=True):
            scheduled.lr = float(rate)
    elif session.recipe.gate_optimizer.lr is None:  # an older checkpoint: from what its optimizer used last
        last = max(int(state["epoch"]) + (int(state["step"]) - 1) / session.data.train.steps, 0.0)
        for scheduled in phase.optimizers:
            if scheduled.name == "gate":
                used = float(scheduled.optimizer.param_groups[0]["lr"])
                scheduled.lr = used / scheduled.schedule(last) / session.rate_factor


def _sums_of_all(engine: Accelerator, sums: Sums) -> list[dict[str, Tensor]]:
    """Return the sums of every process: added up in another order they would be rounded otherwise."""
    own = {name: value.cpu() for name, value in sums._asdict().items()}
    return [own] if engine.num_processes == 1 else list(gather_object([own]))


def _restored_sums(session: Session, saved: list[dict[str, Tensor]] | dict[str, Tensor] | None) -> Sums | None:
    if saved is None:
        return None
    engine, every = session.engine, [saved] if isinstance(saved, dict) else saved  # older checkpoints have one for all
    if len(every) == engine.num_processes:
        return Sums(*(every[engine.process_index][name].to(engine.device) for name in Sums._fields))
    share = 1 if engine.is_main_process else 0  # of another number of processes: all in the first one's
    totals = (torch.stack([one[name] for one in every]).sum(0) for name in Sums._fields)
    return Sums(*(share * total.to(engine.device) for total in totals))


def _restore_random(session: Session, states: list[dict[str, Any]]) -> None:
    engine = session.engine
    if len(states) == engine.num_processes:
        set_random_state(states[engine.process_index])
        return
    session.reporter.note(
        f"this run had {len(states)} processes and has {engine.num_processes} now: it goes on, but not bit for bit"
    )
    seed_everything(session.recipe.run.seed + session.global_step + engine.process_index)


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
