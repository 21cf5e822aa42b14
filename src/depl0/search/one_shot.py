"""Pruning in one call: score, compensate, cut, certify; and train what is left, where steps are given."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from typing_extensions import Unpack

from depl0.config import GateChanges, GateConfig
from depl0.errors import DivergedError, InputError
from depl0.gated import attach
from depl0.host.copies import private_copy
from depl0.host.network import check_host
from depl0.search.calibration import MOST_BATCHES, Calibration, Loss, call
from depl0.search.freezing import freeze_network
from depl0.search.recovery.distillation import DistillationLoss
from depl0.search.scores.reconstruction import reconstruction_scores

MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
WARMUP_STEPS, WARMUP_SHARE = 20, 0.2
"""Right after a cut was compensated for the gradient is long, and a full first step would undo the fit."""


def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    steps: int | None = None,
    loss: Loss | None = None,
    lr: float = 0.01,
    **changes: Unpack[GateChanges],
) -> nn.Module:
    """Return a compact network within a budget. The model is not modified.

    Channels are scored by the error that is left when the layers that read them are refitted without them; those layers
    are then refitted in closed form. With ``steps`` the compact network is fine-tuned after that, with the given
    network as a teacher. ``depl0.info`` describes the result.

    To prune while training, or a network that is not trained yet, use :class:`depl0.Search`.

    Args:
        model: a trained network. Modules that it keeps in evaluation mode while it is in training mode stay so.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments that the network runs on.
        data: batches of inputs, without labels; 1,024 examples are enough. With ``steps``: batches (inputs, targets),
            one for each step, from the beginning again if there are fewer.
        steps: training steps after the cut; None: no training.
        loss: the loss of the task, ``loss(outputs, targets)``; None: cross entropy, and distillation from the given
            network.
        lr: the learning rate of the fine-tuning.
        changes: fields of :class:`depl0.GateConfig`: ``budget`` (0.5 by default), ``of``, ``groups``, ``round_to``, …

    Raises:
        InputError: an argument is invalid, or the budget cannot be reached.
        DivergedError: the loss became non-finite.

    Example:
        >>> import depl0
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> compact = depl0.prune(model, torch.randn(1, 8), data=[torch.randn(64, 8)], budget=0.5)
        >>> depl0.info(compact).macs_left <= 0.5
        True
    """
    config = GateConfig(budget=0.5).changed(**changes).changed(generator="independent")
    if steps is not None:
        _check_training(steps, lr)
        data = list(islice(data, max(steps, MOST_BATCHES))) if isinstance(data, Iterator) else data
        for batch in islice(data, 1):
            _pair(batch)
    dense = private_copy(check_host(model))
    gated = attach(private_copy(model), example_inputs, config)
    calibration = Calibration.of(data, None if steps is None else loss or functional.cross_entropy)
    assert calibration is not None, "data are batches"
    inputs = calibration.inputs()
    scores = reconstruction_scores(gated, inputs, config.of)
    once = Calibration(inputs, inputs, inputs)
    freeze_network(gated, scores=scores, calibration=once, compensated=True)
    compact = gated.extract()
    if steps is not None:
        fixed = {name for name, module in model.named_modules() if model.training and not module.training}
        finetune(compact, data, steps, lr, loss=loss, dense=dense, fixed=fixed)
    return compact


def finetune(
    compact: nn.Module,
    data: Iterable[Any],
    steps: int,
    lr: float,
    *,
    loss: Loss | None,
    dense: nn.Module,
    fixed: Collection[str] = (),
) -> None:
    """Take ``steps`` steps of SGD: a warm-up, then half a cosine to 0. The network is left in evaluation mode.

    Without a loss it is cross entropy, with distillation from the dense network. The modules in ``fixed`` stay in
    evaluation mode.
    """
    task_loss = loss or functional.cross_entropy
    distillation = DistillationLoss(dense) if loss is None else None
    parameters = list(compact.parameters())
    sgd = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    warmup = min(WARMUP_STEPS, max(1, round(WARMUP_SHARE * steps)))
    batches = _endless(data, parameters[0].device)
    compact.train()
    for name, module in compact.named_modules():
        if name in fixed:
            module.training = False
    total = torch.zeros((), device=parameters[0].device)
    for step in range(steps):
        curve = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in sgd.param_groups:
            group["lr"] = lr * curve * min(1.0, (step + 1) / warmup)
        inputs, targets = next(batches)
        if distillation is None:
            value = task_loss(call(compact, inputs), targets)
        else:
            with distillation.watch(compact) as blocks:
                outputs = call(compact, inputs)
            value = distillation(task_loss(outputs, targets), outputs, inputs, blocks)
        value.backward()
        sgd.step()
        sgd.zero_grad()
        total += value.detach()
    if not bool(total.isfinite()):
        raise DivergedError("the loss became non-finite while the network was fine-tuned.", hint="pass a lower lr.")
    compact.eval()


def _check_training(steps: int, lr: float) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 2:
        raise InputError(f"steps must be a whole number of at least 2, got {steps!r} instead.")
    if not lr > 0:
        raise InputError(f"lr must be a number above 0, got {lr!r} instead.")


def _pair(batch: Any) -> tuple[Any, Any]:
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
            yield pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, _pair(batch))
        if not found:
            raise InputError("data gives no batches.", hint="pass a data loader or a list of batches.")
