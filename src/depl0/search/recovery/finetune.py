"""A short training after a cut, taught by the network as it was before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from depl0.errors import DivergedError, InputError
from depl0.search.calibration import Loss, call
from depl0.search.recovery.block_outputs import block_names, kept_outputs, relative_error

TEACHER_SHARE, TEMPERATURE = 0.9, 4.0
"""of the loss, and how soft the teacher's answers are"""
BLOCKS_WEIGHT = 5.0
"""of the error of block outputs, where pruning leaves their shape"""
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
WARMUP_STEPS, WARMUP_SHARE = 20, 0.2
"""Right after a cut was compensated for the gradient is long, and a full first step would undo the fit."""


def check_training(steps: int, lr: float) -> None:
    """Refuse a training that cannot be one, before anything is computed."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:
        raise InputError(f"steps must be a whole number of at least 2, got {steps!r} instead.")
    if not lr > 0:
        raise InputError(f"lr must be a number above 0, got {lr!r} instead.")


@final
class Lesson:
    """What a step's loss is: the task's, and how far answers and blocks are from those of the network as it was."""

    def __init__(self, teacher: nn.Module, loss: Loss | None) -> None:
        self.task_loss: Loss = loss or functional.cross_entropy
        # How one learns from another network's outputs is known for scores of classes alone.
        self._teacher = teacher.eval().requires_grad_(False) if loss is None else None
        self._blocks = block_names(teacher) if loss is None else ()

    def __call__(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        """Return the loss of a batch."""
        with kept_outputs(model, self._blocks) as found:
            outputs = call(model, inputs)
        task = self.task_loss(outputs, targets)
        if self._teacher is None:
            return task
        with torch.no_grad(), kept_outputs(self._teacher, self._blocks) as wanted:
            answers = functional.log_softmax(call(self._teacher, inputs) / TEMPERATURE, dim=1)
        given = functional.log_softmax(outputs / TEMPERATURE, dim=1)
        soft = functional.kl_div(given, answers, reduction="batchmean", log_target=True) * TEMPERATURE**2
        error = relative_error(found, wanted)
        total = (1 - TEACHER_SHARE) * task + TEACHER_SHARE * soft
        return total if error is None else total + BLOCKS_WEIGHT * error


def train_compact(compact: nn.Module, lesson: Lesson, data: Iterable[Any], steps: int, lr: float) -> None:
    """Take ``steps`` steps of SGD: a warm-up, then half a cosine to 0. The network is left in evaluation mode."""
    parameters = list(compact.parameters())
    sgd = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    warmup = min(WARMUP_STEPS, max(1, round(WARMUP_SHARE * steps)))
    batches = _endless(data, parameters[0].device)
    compact.train()
    total = torch.zeros((), device=parameters[0].device)
    for step in range(steps):
        curve = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in sgd.param_groups:
            group["lr"] = lr * curve * min(1.0, (step + 1) / warmup)
        loss = lesson(compact, *next(batches))
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        total += loss.detach()
    if not bool(total.isfinite()):
        raise DivergedError("the loss became non-finite while the network was trained.", hint="pass a lower lr.")
    compact.eval()


def pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a batch to train on."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(
            f"with steps, a batch must be a pair (inputs, targets), got {type(batch).__name__} instead.",
            hint="leave steps out to prune without labels and without training.",
        )
    return batch[0], batch[1]


def _endless(data: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Give pairs (inputs, targets) again and again, where the network is."""
    while True:
        found = False
        for batch in data:
            found = True
            yield pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, pair(batch))
        if not found:
            raise InputError("data gives no batches.", hint="pass a data loader or a list of batches.")
