"""The training loop after a cut: SGD with warm-up and a half cosine, optionally evaluated on held-out inputs."""

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
"""Right after a refit the gradient is large, and a full first step would undo the refit."""
CHECK_EVERY = 20
"""Number of steps between two evaluations of the held-out loss."""
TRIAL, DIVERGED, LOWER = 60, 2.0, 0.1
"""Steps of the trial, ratio of a divergence, and factor: if the held-out loss after the trial exceeds the initial one
by this ratio, the learning rate is multiplied by the factor. With every useful rate the loss rises a little at
first."""
NOTHING_LOST = 1e-6


@final
@dataclass(frozen=True)
class Recovery:
    """The result of a training after a cut."""

    steps: int
    """Number of steps; the best weights may be those of an earlier one."""
    before: float | None = None
    """Held-out loss at the cut; None if there was no judge."""
    after: float | None = None
    """Held-out loss of the returned weights."""
    interrupted: bool = False
    """True if it was interrupted by Ctrl-C."""


@final
@dataclass(frozen=True)
class Judge:
    """Held-out loss, which determines the weights to keep and the end of the training.

    Attributes:
        loss: computes the loss of the current network.
        patience: the training ends after this many steps without improvement; None: it runs all steps.
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
    """Train a network in place, for at most ``steps`` steps; it is in evaluation mode afterwards.

    With a judge the weights with the lowest held-out loss are kept, possibly the initial ones. The learning rate is
    lowered if that loss doubles. After KeyboardInterrupt (Ctrl-C) the best weights so far are kept.

    Args:
        network: the network; parameters that need no gradient are not changed.
        objective: the loss of a batch.
        batches: training batches.
        steps: the maximum number of steps.
        lr: the highest learning rate.
        trained: the modules that are in training mode.
        judge: the held-out loss; None: all steps are run and the last weights are kept.
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
                break  # neither outputs nor blocks can be compared, for example class indices
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
    """Set the learning rate of a step: a warm-up, then a half cosine to 0."""
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
