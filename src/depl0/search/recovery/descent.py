"""The training loop after a cut: SGD with a warm-up and half a cosine, judged by held-out inputs or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.progress import report_progress

LR, CLIP_NORM = 0.01, 5.0
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
WARMUP_STEPS, WARMUP_SHARE = 20, 0.2
"""Right after a cut was compensated for the gradient is long, and a full first step would undo the fit."""
CHECK_EVERY = 20
"""steps between two measurements of the held-out loss"""
TRIAL, DIVERGED, LOWER = 60, 2.0, 0.1
"""If the held-out loss after so many steps is so many times that of the cut, the rate is multiplied by this factor. In
the first steps the loss rises a little with every useful rate."""
NOTHING_LOST = 1e-6


@final
@dataclass(frozen=True)
class Recovery:
    """What a training after a cut did."""

    steps: int
    """that were taken; the best weights may be those of an earlier one"""
    before: float | None = None
    """held-out loss at the cut; None if there was no judge"""
    after: float | None = None
    """held-out loss of the returned weights"""
    interrupted: bool = False
    """by Ctrl-C"""


@final
@dataclass(frozen=True)
class Judge:
    """Held-out loss: decides which weights stay, and when the training ends.

    Attributes:
        loss: computes it for the network as it is.
        patience: the training ends after so many steps without improvement; None: it takes all steps.
    """

    loss: Callable[[], float]
    patience: int | None = None


def descend(
    network: nn.Module,
    objective: Callable[[Any], Tensor],
    batches: Iterator[Any],
    *,
    steps: int,
    lr: float,
    trained: list[nn.Module],
    judge: Judge | None = None,
    clip: float | None = None,
) -> Recovery:
    """Train a network in place, at most so many steps; it is left in evaluation mode.

    With a judge the weights with the lowest held-out loss stay, those of the start among them; the rate is lowered if
    that loss doubles, and after KeyboardInterrupt (Ctrl-C) the best weights so far stay.

    Args:
        network: parameters that need no gradient stay as they are.
        objective: the loss of a batch.
        batches: training batches.
        steps: the number of steps, at most.
        lr: the highest learning rate.
        trained: the modules that are in training mode.
        judge: held-out loss; None: all steps are taken and the last weights stay.
        clip: the largest norm of a gradient.
    """
    parameters = [p for p in network.parameters() if p.requires_grad and p.is_floating_point()]
    if not parameters:
        return Recovery(0)
    sgd = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    first = best = math.inf if judge is None else judge.loss()
    patience = None if judge is None else judge.patience
    weights, best_step, done, tried = None if judge is None else state_copy(network), 0, 0, 0
    interrupted = False
    try:
        while done < steps and first > NOTHING_LOST and (patience is None or done - best_step < patience):
            set_rate(sgd, lr, done, steps)
            set_modes(network, trained)
            loss = objective(next(batches))
            if not loss.requires_grad:
                break  # neither outputs nor blocks can be compared: class indices, say
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            sgd.step()
            sgd.zero_grad()
            done += 1
            if judge is not None and (done % CHECK_EVERY == 0 or done == steps):
                held_out = judge.loss()
                if held_out < best:
                    best, best_step, weights = held_out, done, state_copy(network)
                elif not held_out <= DIVERGED * first and done - tried >= TRIAL and weights is not None:
                    network.load_state_dict(weights)
                    sgd.state.clear()
                    lr, tried = LOWER * lr, done
            report_progress(done, steps)
    except KeyboardInterrupt:
        if judge is None:
            raise
        interrupted = True
    finally:
        if weights is not None:
            network.load_state_dict(weights)
        network.eval()
    return Recovery(done) if judge is None else Recovery(done, first, best, interrupted)


def set_rate(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    """Set the learning rate of a step: a warm-up, then half a cosine to 0."""
    warmup = min(WARMUP_STEPS, max(1, round(WARMUP_SHARE * steps)))
    curve = 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = lr * curve * min(1.0, (step + 1) / warmup)


def set_modes(network: nn.Module, trained: list[nn.Module]) -> None:
    """Put these modules into training mode, and all others into evaluation mode."""
    network.eval()
    for module in trained:
        module.training = True


def state_copy(network: nn.Module) -> dict[str, Any]:
    """Return a copy of a network's state dict."""
    return {name: v.detach().clone() if isinstance(v, Tensor) else v for name, v in network.state_dict().items()}
