"""A short training around a cut: a search to the budget, then fine-tuning, both taught by the network as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from depl0._host import check_host, private_copy
from depl0.config import GateConfig
from depl0.errors import DivergedError, InputError
from depl0.gated import attach
from depl0.pruning.calibration import MOST_BATCHES, Loss, call
from depl0.pruning.rates import gate_learning_rate
from depl0.pruning.search import Search

SEARCH_SHARE = 0.4
"""of the steps; the rest fine-tunes the compact network"""
TEACHER_SHARE, TEMPERATURE = 0.9, 4.0
"""of the loss, and how soft the teacher's answers are"""
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4


def prune_with_training(
    model: nn.Module,
    example_inputs: Any,
    config: GateConfig,
    data: Iterable[Any],
    steps: int,
    loss: Loss | None,
    lr: float,
) -> nn.Module:
    """Return a compact network within a budget, after a search and fine-tuning of ``steps`` in all."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:
        raise InputError(f"steps must be a whole number of at least 2, got {steps!r} instead.")
    if not lr > 0:
        raise InputError(f"lr must be a number above 0, got {lr!r} instead.")
    kept = list(islice(data, steps + MOST_BATCHES)) if isinstance(data, Iterator) else data
    gated = attach(private_copy(check_host(model)), example_inputs, config)
    lesson = Lesson(private_copy(model), loss)
    search_steps = max(1, round(SEARCH_SHARE * steps))
    batches = _endless(kept, next(gated.host.parameters()).device)
    weights = _sgd(gated.weight_parameters(), lr)
    gates = torch.optim.Adam(gated.gate_parameters(), lr=gate_learning_rate(gated, search_steps))
    search = Search(gated, search_steps, optimizers=[weights], calibrate=kept, loss=lesson.task_loss, compensate=True)
    _train(gated, lesson, batches, search_steps, [weights, gates], lambda passed: lr, search.step)
    compact = search.finish()
    left = steps - search_steps
    weights = _sgd(compact.parameters(), lr)
    _train(compact, lesson, batches, left, [weights], lambda passed: lr * 0.5 * (1 + math.cos(math.pi * passed)))
    return compact.eval()


@final
class Lesson:
    """What a step's loss is: the task's, and how far the answers are from those of the network as it was."""

    def __init__(self, teacher: nn.Module, loss: Loss | None) -> None:
        self.task_loss: Loss = loss or functional.cross_entropy
        # How one learns from another network's outputs is known for scores of classes alone.
        self._teacher = teacher.eval().requires_grad_(False) if loss is None else None

    def __call__(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        """Return the loss of a batch."""
        outputs = call(model, inputs)
        task = self.task_loss(outputs, targets)
        if self._teacher is None:
            return task
        with torch.no_grad():
            wanted = functional.log_softmax(call(self._teacher, inputs) / TEMPERATURE, dim=1)
        given = functional.log_softmax(outputs / TEMPERATURE, dim=1)
        soft = functional.kl_div(given, wanted, reduction="batchmean", log_target=True) * TEMPERATURE**2
        return (1 - TEACHER_SHARE) * task + TEACHER_SHARE * soft


def _train(
    model: nn.Module,
    lesson: Lesson,
    batches: Iterator[tuple[Any, Any]],
    steps: int,
    optimizers: list[torch.optim.Optimizer],
    rate: Callable[[float], float],
    before_step: Callable[[], object] = lambda: None,
) -> None:
    """Take steps; the first optimizer's rate is a function of the share of them that has passed, after a warm-up."""
    model.train()
    total: Tensor | None = None
    warmup = min(20, max(1, steps // 5))
    for step in range(steps):
        before_step()
        for group in optimizers[0].param_groups:
            group["lr"] = rate(step / steps) * min(1.0, (step + 1) / warmup)
        loss = lesson(model, *next(batches))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        total = loss.detach() if total is None else total + loss.detach()
    if total is not None and not bool(total.isfinite()):
        raise DivergedError("the loss became non-finite while the network was trained.", hint="pass a lower lr.")


def _sgd(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.SGD:
    return torch.optim.SGD(list(parameters), lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)


def _endless(data: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Give pairs (inputs, targets) again and again, where the network is."""
    while True:
        found = False
        for batch in data:
            found = True
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise InputError(
                    f"with steps, a batch must be a pair (inputs, targets), got {type(batch).__name__} instead.",
                    hint="leave steps out to prune without labels and without training.",
                )
            inputs, targets = pytree.tree_map(
                lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tuple(batch)
            )
            yield inputs, targets
        if not found:
            raise InputError("data gives no batches.", hint="pass a data loader or a list of batches.")
