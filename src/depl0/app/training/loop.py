"""The training loop: one path for dense training, search and fine-tuning."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, final

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.distributed import broadcast_buffers
from depl0._util.progress import stop_deferred, stop_requested
from depl0.app.runs.records import describe_gates, gates_line
from depl0.app.runtime.execution import match_state_layout, set_channels_last
from depl0.app.runtime.guard import check, explain_batch_norm, wrong_loss, wrong_parameter
from depl0.app.runtime.processes import any_rank, release
from depl0.app.training.evaluate import evaluate
from depl0.app.training.phase import Phase
from depl0.app.training.session import Session, Sums, restore_phase, save_phase
from depl0.errors import RunInterruptedError
from depl0.search.calibration import call

_CHECK_EVERY = 20
"""steps between two checks of the loss, each of which synchronizes the device"""
_CHECK_SECONDS = 5.0
"""longest interval between checks with several processes, because only checks detect a request to stop"""


def run_phase(session: Session, phase: Phase) -> None:
    """Train for the phase's epochs, resuming from a checkpoint if there is one."""
    accelerator, batches, is_new = session.accelerator, session.data.train, session.checkpoint_of(phase.name) is None
    epoch, first_step, sums = restore_phase(session, phase)  # first, because it may make the network smaller
    wrapped, timing = _prepare(session, phase), _Timing(session)
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
                        release(accelerator, phase.called)
                        wrapped = _prepare(session, phase).train()
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
                    _after_step(session, phase, timing, epoch, step + 1, sums)
                phase.after_epoch()
                _write_epoch(session, phase, epoch + 1, sums, time.monotonic() - start)
                epoch, first_step, sums = epoch + 1, 0, None
                is_due = epoch == phase.epochs or timing.is_checkpoint_due()
                _save_or_stop(session, phase, timing, epoch, 0, sums, is_due=is_due)
    finally:
        session.reporter.end()
        wrapped = phase.called  # the wrapper refers to the process group, so it is collected here
        release(accelerator, phase.called)
    session.epoch = phase.epochs


def _prepare(session: Session, phase: Phase) -> nn.Module:
    """Prepare a phase for its next step, at its start or after its network was rebuilt; return the module to call."""
    if session.recipe.run.channels_last:
        set_channels_last(phase.model)
    for scheduled in phase.optimizers:
        match_state_layout(scheduled.optimizer)
    return prepare_phase(session.accelerator, phase)


def prepare_phase(accelerator: Accelerator, phase: Phase) -> nn.Module:
    """Prepare the network and its optimizers with the accelerator; return the prepared network."""
    wrapped, *prepared = accelerator.prepare(phase.called, *(scheduled.optimizer for scheduled in phase.optimizers))
    for scheduled, optimizer in zip(phase.optimizers, prepared, strict=True):
        scheduled.optimizer = optimizer
    return wrapped  # type: ignore[no-any-return]


def train_step(session: Session, phase: Phase, wrapped: nn.Module, inputs: Any, targets: Any) -> Sums:
    """Run one step; return its contribution to the epoch's sums, without synchronizing the device."""
    accelerator, teacher = session.accelerator, phase.distillation
    with accelerator.autocast(), explain_batch_norm():
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
    for scheduled in phase.optimizers:
        scheduled.optimizer.step()
        scheduled.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        measured = session.task.measure(losses.outputs, targets)
    both = torch.stack([loss.detach().float(), losses.task.detach().float()])
    count = next(len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))
    return Sums(torch.cat([both * count, torch.full_like(both[:1], count)]), measured)


# -- checks, checkpoints and stops -----------------------------------------------------------------------------------


@final
class _Timing:
    """Decides when to check the loss and when to save; every process comes to the same decision on its own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._saved = self._checked = time.monotonic()
        self._step, self._next_check = session.global_step, 0

    def is_check_due(self) -> bool:
        """Return True if a check is due: every 20 steps, and often enough for several processes to stop together."""
        accelerator, step = self._session.accelerator, self._session.global_step
        if self.is_step_to_save():
            return True
        if accelerator.num_processes == 1 or step < self._next_check:
            return accelerator.num_processes == 1 and step % _CHECK_EVERY == 0
        now = time.monotonic()
        rate = (step - self._step) / max(now - self._checked, 1e-3)
        wanted = torch.tensor(float(min(rate * _CHECK_SECONDS, _CHECK_EVERY)), device=accelerator.device)
        steps = float(accelerator.reduce(wanted, reduction="mean"))
        self._next_check, self._step, self._checked = step + max(1, int(steps)), step, now
        return True

    def is_step_to_save(self) -> bool:
        """Return True if ``run.checkpoint_steps`` requires a checkpoint after this step."""
        steps = self._session.recipe.run.checkpoint_steps
        return steps is not None and self._session.global_step % steps == 0

    def is_checkpoint_due(self) -> bool:
        """Return True if a checkpoint is due, by steps or by time."""
        run = self._session.recipe.run
        by_time = run.checkpoint_steps is None and time.monotonic() - self._saved >= 60 * run.checkpoint_minutes
        return by_time or self.is_step_to_save()

    def note_saved(self) -> None:
        """Start to wait for the next checkpoint."""
        self._saved = time.monotonic()


def _after_step(session: Session, phase: Phase, timing: _Timing, epoch: int, step: int, sums: Sums) -> None:
    """Stop on non-finite values or on request, and save if a checkpoint is due."""
    last = step == session.data.train.steps
    asked = stop_requested() and session.accelerator.num_processes == 1  # several processes stop together, at a check
    if not (last or asked or timing.is_check_due()):
        return
    lr = phase.optimizers[0].optimizer.param_groups[0]["lr"]
    where = f"{phase.name}, epoch {epoch + 1}, learning rate {lr:g}"
    loss, task_loss, count = sums.losses.tolist()
    wrong = wrong_loss(loss, task_loss, session.global_step) or wrong_parameter(phase.model, session.global_step)
    check(session.accelerator, wrong, where)
    if not last:  # on this process's own images
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
    _save_or_stop(session, phase, timing, epoch, step, sums, is_due=timing.is_checkpoint_due() and not last)


def _save_or_stop(
    session: Session, phase: Phase, timing: _Timing, epoch: int, step: int, sums: Sums | None, *, is_due: bool
) -> None:
    """Save if a checkpoint is due in any process or a stop was requested, and then stop."""
    stop, due = any_rank(session.accelerator, stop_requested(), is_due)
    if stop or due:
        save_phase(session, phase, epoch, step, sums)
        timing.note_saved()
    if stop:
        raise RunInterruptedError(
            f"interrupted at step {session.global_step}; everything is saved in {session.folder.path}.",
            hint="re-run with --resume to continue.",
        )


# -- records after an epoch --------------------------------------------------------------------------------------------


def _write_epoch(session: Session, phase: Phase, epoch: int, sums: Sums | None, seconds: float) -> None:
    accelerator, metric = session.accelerator, session.task.metric.name
    assert sums is not None, "an epoch has at least one step"
    total = sums.over_processes(accelerator)
    loss, task_loss, count = total.losses.tolist()
    broadcast_buffers(phase.model)
    score = evaluate(accelerator, phase.model, session.data.for_choices.epoch(0), session.task)
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
        **({} if phase.gated is None else describe_gates(phase.gated, session.recipe.penalty.weight)),
        "seconds": seconds,
    }
    if accelerator.is_main_process:
        session.folder.metrics.add(line)
        session.trackers.log(_scalars(phase.name, line), session.global_step)
    _write_gates(session, phase, epoch)
    session.reporter.epoch(line)


def _write_gates(session: Session, phase: Phase, epoch: float) -> None:
    if session.accelerator.is_main_process and phase.search is not None and phase.gated is not None:
        where = {"phase": phase.name, "epoch": epoch, "step": session.global_step}
        session.folder.gates.add({**where, **gates_line(phase.gated)})


def _scalars(phase: str, line: dict[str, Any]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{phase}/{key}/{k}": float(v) for k, v in value.items() if isinstance(v, (int, float))}
        elif isinstance(value, (int, float)):
            flat[f"{phase}/{key}"] = float(value)
    return flat
