"""Label-free recovery: the pruned network is distilled from the original one on the same inputs.

    loss = T²·KL(softmax(original/T) ‖ softmax(pruned/T)) + b·relative squared error of block outputs

with T = 4 and b = 80 (:mod:`.distillation`), all means over positions. Outputs that are not class scores are compared
by their relative squared error instead (:mod:`.outputs`), and scores of tokens with T = 1 and b = 0, by AdamW.
Gradients are clipped, because they are large right after a cut. Held-out inputs determine the end of the training, the
weights to keep, and whether the rate is too high (:func:`descend`, the training loop, which training with labels uses
too).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.progress import report_progress
from depl0._util.random import isolated_random
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode
from depl0.search.calibration import (
    Augment,
    augmented,
    call,
    endless,
    examples_in,
    on_device,
)
from depl0.search.recovery.distillation import BLOCKS, TEMPERATURE, DistillationLoss, KeptChannels, SoftLoss
from depl0.search.recovery.memory import BATCH_SIZE, training_batch
from depl0.search.recovery.outputs import Comparison, compare_by

STEPS, PATIENCE = 600, 200
"""Largest number of steps, in total and without improvement."""
VALUE_BLOCKS = 5.0
"""Weight of block outputs relative to outputs that are values, whose error is also relative."""
FEW = 32
"""Smallest batch whose own statistics are used by batch norms: EfficientNet-Lite0 at 224 px recovers only without."""
LR, CLIP_NORM = 0.01, 5.0
TOKEN_LR = 1e-4
"""Rate of AdamW for language models, which are distilled by the scores of their tokens alone."""
MOMENTUM, WEIGHT_DECAY, ADAM_BETAS = 0.9, 1e-4, (0.9, 0.95)
WARMUP_STEPS, WARMUP_SHARE = 20, 0.2
"""Right after a refit the gradient is large, and a full first step would undo the refit."""
CHECK_EVERY = 20
"""Number of steps between two evaluations of the held-out loss."""
TRIAL, DIVERGED, LOWER = 60, 2.0, 0.1
"""Steps of the trial, ratio of a divergence, and factor: if the held-out loss after the trial exceeds the initial one
by this ratio, the learning rate is multiplied by the factor. With every useful rate the loss rises a little at
first."""
NOTHING_LOST = 1e-6


def distill(
    pruned: nn.Module,
    original: nn.Module,
    inputs: Iterable[Any],
    held_out: list[Any],
    *,
    steps: int = STEPS,
    patience: int | None = PATIENCE,
    lr: float | None = None,
    comparison: Comparison | None = None,
    soft: SoftLoss | None = None,
    blocks: float | None = None,
    augment: Augment = False,
    kept: KeptChannels | None = None,
) -> Recovery:
    """Train a pruned network on the original network's outputs, in place; it is in evaluation mode afterwards.

    The weights with the lowest loss on ``held_out`` are kept, possibly those of the cut. After KeyboardInterrupt
    (Ctrl-C) the best weights so far are kept, and the exception is not raised again. Parameters that need no gradient
    are not changed. Torch's random state is restored.

    Args:
        pruned: the network.
        original: its teacher. Pass a copy: it is put into evaluation mode.
        inputs: training batches, repeated as often as needed; those of a list are shuffled.
        held_out: batches for evaluation; if empty, the first of ``inputs``.
        steps: the maximum number of steps.
        patience: stop after this many steps without improvement; None: run all steps.
        lr: the highest learning rate; lowered tenfold if the loss doubles. None: 0.01, and 0.0001 for scores of tokens.
        comparison: the comparison of outputs; None: with inferred axes.
        soft: another loss for outputs (:class:`.DistillationLoss`).
        blocks: the weight of the error of block outputs; None: 80 for class scores, 5 for values, 0 for scores of
            tokens, because a few tokens have outputs a hundred times as large as all others.
        augment: True: random flips and shifts of images; or a function of a batch of inputs.
        kept: the channels that blocks kept (:func:`.kept_channels`).
    """
    device = next((p.device for p in pruned.parameters()), torch.device("cpu"))
    held_out = on_device(held_out or list(islice(inputs, 1)), device)
    comparison = comparison or compare_by(original, held_out[0])
    tokens = comparison.of_tokens
    if blocks is None:
        blocks = 0.0 if tokens else BLOCKS if comparison.has_classes else VALUE_BLOCKS
    loss = DistillationLoss(
        original,
        weight=1.0,
        temperature=1.0 if tokens else TEMPERATURE,
        soft=soft or comparison.loss(),
        blocks=blocks,
        kept=kept,
    )

    step = count(1)

    def objective(batch: Any) -> Tensor:
        return _distil(pruned, loss, augmented(batch, augment, f"in step {next(step)} of the recovery"))

    size = min(BATCH_SIZE, training_batch(pruned, ExampleInputs.of(held_out[0])))
    with isolated_random(0):
        smallest = min(map(examples_in, inputs if isinstance(inputs, list) else islice(inputs, 1)))
        return descend(
            pruned,
            objective,
            endless(inputs, device, size),
            steps=steps,
            lr=lr or (TOKEN_LR if tokens else LR),
            adam=tokens,
            trained=training_modules(pruned, min(size, smallest)),
            judge=lambda: _held_out_loss(pruned, loss, held_out),
            patience=patience,
            clip=CLIP_NORM,
        )


def _distil(network: nn.Module, distillation: DistillationLoss, batch: Any) -> Tensor:
    with distillation.watch(network) as blocks:
        outputs = call(network, batch)
    return distillation(torch.zeros((), device=next(network.parameters()).device), outputs, batch, blocks)


@torch.no_grad()
def _held_out_loss(network: nn.Module, distillation: DistillationLoss, batches: list[Any]) -> float:
    with evaluation_mode(network):
        losses = [float(_distil(network, distillation, batch)) * examples_in(batch) for batch in batches]
    return sum(losses) / sum(map(examples_in, batches))


def training_modules(pruned: nn.Module, examples: int) -> list[nn.Module]:
    """Return the modules to put in training mode: norms, if batches are large enough for statistics.

    Recurrent layers are included because some devices cannot differentiate them in evaluation mode.
    """
    return [
        module
        for module in pruned.modules()
        if isinstance(module, nn.RNNBase)
        or (
            isinstance(module, nn.modules.batchnorm._NormBase)
            and examples >= FEW
            and all(p.requires_grad for p in module.parameters(recurse=False))
        )
    ]


# -- the training loop -----------------------------------------------------------------------------------------------


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


def descend(
    network: nn.Module,
    objective: Callable[[Any], Tensor],
    batches: Iterator[Any],
    *,
    steps: int,
    lr: float,
    trained: list[nn.Module],
    adam: bool = False,
    judge: Callable[[], float] | None = None,
    patience: int | None = None,
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
        adam: if True, AdamW without weight decay, otherwise SGD.
        judge: computes the held-out loss, which decides on the weights to keep; None: the last weights are kept.
        patience: stop after this many steps without improvement of that loss; None: run all steps.
        clip: the largest norm of a gradient.
    """
    parameters = [p for p in network.parameters() if p.requires_grad and p.is_floating_point()]
    if not parameters:
        return Recovery(0)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=lr, betas=ADAM_BETAS, weight_decay=0.0)
    if not adam:
        optimizer = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    first = best = math.inf if judge is None else judge()
    weights, best_step, done, tried = None if judge is None else state_copy(network), 0, 0, 0
    interrupted = False
    try:
        while done < steps and first > NOTHING_LOST and (patience is None or done - best_step < patience):
            set_rate(optimizer, lr, done, steps)
            set_modes(network, trained)
            loss = objective(next(batches))
            if not loss.requires_grad:
                break  # neither outputs nor blocks can be compared, for example class indices
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if judge is not None and (done % CHECK_EVERY == 0 or done == steps):
                held_out = judge()
                if held_out < best:
                    best, best_step, weights = held_out, done, state_copy(network)
                elif not held_out <= DIVERGED * first and done - tried >= TRIAL and weights is not None:
                    network.load_state_dict(weights)
                    optimizer.state.clear()
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
