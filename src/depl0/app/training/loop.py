"""The training loop: one path for dense training, search and fine-tuning."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.distributed import broadcast_buffers
from depl0._util.progress import stop_asked, stop_deferred
from depl0.app.runtime.accelerator import any_process, prepare, restore
from depl0.app.runtime.guard import explained_batches
from depl0.app.runtime.network import compiled, match_state_layout, set_channels_last
from depl0.app.training.checkpoints import Sums, is_checkpoint_due, is_step_to_save, restore_phase, save_phase
from depl0.app.training.evaluate import evaluate
from depl0.app.training.phase import Phase
from depl0.app.training.session import Session
from depl0.errors import RunInterruptedError
from depl0.search.calibration import call

_CHECK_EVERY = 20
"""steps between two checks of the loss, each of which synchronizes the device"""
_CHECK_SECONDS = 5.0
"""longest interval between checks with several processes, because only checks detect a request to stop"""


def run_phase(session: Session, phase: Phase) -> None:
    """Train for the phase's epochs, resuming from a checkpoint if there is one."""
    _run_phase(session, phase)
    session.epoch = phase.epochs


def _run_phase(session: Session, phase: Phase) -> None:
    accelerator, batches, is_new = session.accelerator, session.data.train, session.checkpoint_of(phase.name) is None
    epoch, first_step, sums = restore_phase(session, phase)  # first, because it may make the network smaller
    wrapped = _prepare(session, phase)
    session.reporter.begin(
        phase.name, phase.epochs, batches.steps, epoch * batches.steps + first_step, session.task.metric
    )
    if is_new and phase.epochs == 0:
        _write_gates(session, phase, 0)
    try:
        with stop_deferred():
            while epoch < phase.epochs:
                start = time.monotonic()
                wrapped.train()
                for step, (inputs, targets) in enumerate(batches.epoch(epoch, first_step), start=first_step):
                    session.epoch = epoch + step / batches.steps
                    if phase.before_step():  # parameters were replaced: wrap the network again
                        del wrapped
                        restore(accelerator, phase.called)
                        wrapped = _prepare(session, phase)
                        wrapped.train()
                    if epoch == 0 and step == 0:  # gates move now, unless a warm-up keeps them open
                        _write_gates(session, phase, 0)
                    for scheduled in phase.optimizers:
                        scheduled.set_rate(session.epoch)
                    sums = train_step(session, phase, wrapped, inputs, targets).plus(sums)
                    session.global_step += 1
                    session.reporter.step()
                    every = session.recipe.run.gates_steps
                    if every and session.global_step % every == 0 and step + 1 < batches.steps:
                        _write_gates(session, phase, epoch + (step + 1) / batches.steps)
                    _after_step(session, phase, epoch, step + 1, sums)
                phase.after_epoch()
                _write_epoch(session, phase, epoch + 1, sums, time.monotonic() - start)
                epoch, first_step, sums = epoch + 1, 0, None
                stop, due = any_process(accelerator, stop_asked(), is_checkpoint_due(session))
                if epoch == phase.epochs or due or stop:
                    save_phase(session, phase, epoch, 0, sums)
                if stop:  # requested during the evaluation of the epoch
                    raise _interrupted(session)
    finally:
        session.reporter.end()
        wrapped = phase.called  # the wrapper refers to the process group, so it is collected here
        restore(accelerator, phase.called)


def _prepare(session: Session, phase: Phase) -> nn.Module:
    """Prepare a phase for its next step, at its start or after its network was rebuilt; return the module to call."""
    if session.state.channels_last:
        set_channels_last(phase.model)
    for scheduled in phase.optimizers:
        match_state_layout(scheduled.optimizer)
    wrapped = prepare_phase(session.accelerator, phase)
    return compiled(wrapped, session.accelerator.device) if session.recipe.run.compile else wrapped


def prepare_phase(accelerator: Accelerator, phase: Phase) -> nn.Module:
    """Prepare the network and its optimizers with the accelerator; return the prepared network."""
    optimizers = [scheduled.optimizer for scheduled in phase.optimizers]
    wrapped, prepared = prepare(accelerator, phase.called, optimizers, phase.find_unused_parameters)
    for scheduled, optimizer in zip(phase.optimizers, prepared, strict=True):
        scheduled.optimizer = optimizer
    return wrapped


def train_step(session: Session, phase: Phase, wrapped: nn.Module, inputs: Any, targets: Any) -> Sums:
    """Run one step; return its contribution to the epoch's sums, without synchronizing the device."""
    accelerator, teacher = session.accelerator, phase.distillation
    with accelerator.autocast(), explained_batches():
        with teacher.watch(phase.model) if teacher is not None else nullcontext({}) as blocks:
            outputs = call(wrapped, inputs)
        losses = phase.losses(outputs, targets)
        loss = losses.total
        if teacher is not None:  # penalties are not part of the distillation loss
            loss = loss - losses.task + teacher(losses.task, losses.outputs, inputs, blocks)
    accelerator.backward(loss)
    if phase.clip_norm is not None:
        weights = phase.optimizers[0].optimizer
        accelerator.unscale_gradients(weights)  # the gates' optimizer unscales its own gradients in its step
        nn.utils.clip_grad_norm_([p for group in weights.param_groups for p in group["params"]], phase.clip_norm)
    session.guard.keep(loss, losses.task, [s.optimizer for s in phase.optimizers], accelerator.scaler is not None)
    for scheduled in phase.optimizers:
        scheduled.optimizer.step()
        scheduled.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        measured = session.task.measure(losses.outputs, targets)
    both = torch.stack([loss.detach().float(), losses.task.detach().float()])
    count = next(len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))
    return Sums(torch.cat([both * count, torch.full_like(both[:1], count)]), measured)


def _after_step(session: Session, phase: Phase, epoch: int, step: int, sums: Sums) -> None:
    """Stop on non-finite values or on request, and save if a checkpoint is due."""
    last = step == session.data.train.steps
    asked = stop_asked() and session.accelerator.num_processes == 1  # several processes stop together, at a check
    if not (last or asked or _is_time_to_check(session) or is_step_to_save(session)):
        return
    names = [scheduled.name for scheduled in phase.optimizers]
    lr = phase.optimizers[0].optimizer.param_groups[0]["lr"]
    where = f"{phase.name}, epoch {epoch + 1}, learning rate {lr:g}"
    session.guard.check(session.accelerator, phase.model, session.global_step, names, where)
    if not last:  # on this process's own images; the previous check has already synchronized the device
        loss, _, count = sums.losses.tolist()
        session.reporter.progress(
            {
                "epoch": epoch + 1,
                "step": step,
                "steps": session.data.train.steps,
                "loss": loss / count,
                f"train_{session.task.metric.name}": session.task.value(sums.measured),
                "lr": lr,
            }
        )
    stop, due = any_process(session.accelerator, stop_asked(), is_checkpoint_due(session))
    if stop or (due and not last):
        save_phase(session, phase, epoch, step, sums)
    if stop:
        raise _interrupted(session)


def _interrupted(session: Session) -> RunInterruptedError:
    return RunInterruptedError(
        f"interrupted at step {session.global_step}; everything is saved in {session.folder.path}.",
        hint="re-run with --resume to continue.",
    )


def _is_time_to_check(session: Session) -> bool:
    """Return True if a check is due. Every process must compute the same result on its own."""
    if session.accelerator.num_processes == 1:
        return session.global_step % _CHECK_EVERY == 0
    if session.global_step < session.next_check:
        return False
    (step, then), now = session.last_check, time.monotonic()
    rate = (session.global_step - step) / max(now - then, 1e-3)
    wanted = torch.tensor(float(min(rate * _CHECK_SECONDS, _CHECK_EVERY)), device=session.accelerator.device)
    steps = float(session.accelerator.reduce(wanted, reduction="mean")) if then else 1.0
    session.next_check, session.last_check = session.global_step + max(1, int(steps)), (session.global_step, now)
    return True


# -- records after an epoch --------------------------------------------------------------------------------------------


def _write_epoch(session: Session, phase: Phase, epoch: int, sums: Sums | None, seconds: float) -> None:
    accelerator = session.accelerator
    assert sums is not None, "an epoch has at least one step"
    total = sums.over_processes(accelerator)
    loss, task_loss, count = total.losses.tolist()
    metric = session.task.metric.name
    broadcast_buffers(phase.model)
    score = evaluate(accelerator, phase.model, session.data.for_choices.epoch(0), session.task)
    line: dict[str, Any] = {
        "phase": phase.name,
        "method": session.written.gates.method,
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
    if accelerator.is_main_process:
        session.folder.metrics.add(line)
        accelerator.log(_scalars(phase.name, line), step=session.global_step)
    _write_gates(session, phase, epoch)
    session.reporter.epoch(line)


def _write_gates(session: Session, phase: Phase, epoch: float) -> None:
    if session.accelerator.is_main_process:
        gates = phase.gates_line()
        if gates is not None:
            where = {"phase": phase.name, "epoch": epoch, "step": session.global_step}
            session.folder.gates.add({**where, **gates})


def _scalars(phase: str, line: dict[str, Any]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{phase}/{key}/{k}": float(v) for k, v in value.items() if isinstance(v, (int, float))}
        elif isinstance(value, (int, float)):
            flat[f"{phase}/{key}"] = float(value)
    return flat
