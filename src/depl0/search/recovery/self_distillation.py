"""Label-free recovery: the pruned network is distilled from the original one on the same inputs.

    loss = T²·KL(softmax(original/T) ‖ softmax(pruned/T)) + b·relative squared error of block outputs

with T = 4 and b = 80 (:mod:`.distillation`), all means over positions. Outputs that are not class scores are compared
by their relative squared error instead (:mod:`.outputs`). Gradients are clipped, because they are large right after a
cut. Held-out inputs determine the end of the training, the weights to keep, and whether the rate is too high
(:mod:`.descent`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.random import isolated_random
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call, examples_in, on_device
from depl0.search.recovery.descent import CLIP_NORM, LR, Judge, Recovery, descend
from depl0.search.recovery.distillation import BLOCKS, DistillationLoss, KeptChannels, SoftLoss
from depl0.search.recovery.examples import BATCH_SIZE, Augment, augmented, endless, smallest_batch
from depl0.search.recovery.memory import training_batch
from depl0.search.recovery.outputs import Comparison, compare_by

STEPS, PATIENCE = 600, 200
"""Largest number of steps, in total and without improvement."""
VALUE_BLOCKS = 5.0
"""Weight of block outputs relative to outputs that are values, whose error is also relative."""
FEW = 8
"""Smallest batch whose own statistics are reliable enough for batch norms."""


def distill(
    pruned: nn.Module,
    original: nn.Module,
    inputs: Iterable[Any],
    held_out: list[Any],
    *,
    steps: int = STEPS,
    patience: int | None = PATIENCE,
    lr: float = LR,
    comparison: Comparison | None = None,
    soft: SoftLoss | None = None,
    blocks: float | None = None,
    augment: Augment = False,
    fixed: Collection[str] | None = None,
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
        lr: the highest learning rate; lowered tenfold if the loss doubles.
        comparison: the comparison of outputs; None: with inferred axes.
        soft: another loss for outputs (:class:`.DistillationLoss`).
        blocks: the weight of the error of block outputs; None: 80 for class scores, 5 for values.
        augment: True: random flips and shifts of images; or a function of a batch of inputs.
        fixed: modules that stay in evaluation mode, all others train; None: only batch norms train.
        kept: the channels that blocks kept (:func:`.kept_channels`).
    """
    device = next((p.device for p in pruned.parameters()), torch.device("cpu"))
    held_out = on_device(held_out or list(islice(inputs, 1)), device)
    comparison = comparison or compare_by(original, held_out[0])
    if blocks is None:
        blocks = BLOCKS if comparison.has_classes else VALUE_BLOCKS
    loss = DistillationLoss(original, weight=1.0, soft=soft or comparison.loss(), blocks=blocks, kept=kept)

    def objective(batch: Any) -> Tensor:
        return _distil(pruned, loss, augmented(batch, augment))

    size = min(BATCH_SIZE, training_batch(pruned, ExampleInputs.of(held_out[0])))
    with isolated_random(0):
        return descend(
            pruned,
            objective,
            endless(inputs, device, size),
            steps=steps,
            lr=lr,
            trained=training_modules(pruned, fixed, min(size, smallest_batch(inputs))),
            judge=Judge(lambda: _held_out_loss(pruned, loss, held_out), patience),
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


def training_modules(pruned: nn.Module, fixed: Collection[str] | None, examples: int) -> list[nn.Module]:
    """Return the modules to put in training mode; norms only if batches are large enough for statistics.

    Recurrent layers are included because some devices cannot differentiate them in evaluation mode.
    """
    found = []
    for name, module in pruned.named_modules():
        is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
        learns = all(p.requires_grad for p in module.parameters(recurse=False))
        by_default = is_norm or isinstance(module, nn.RNNBase)
        if (by_default if fixed is None else name not in fixed) and not (is_norm and (examples < FEW or not learns)):
            found.append(module)
    return found
