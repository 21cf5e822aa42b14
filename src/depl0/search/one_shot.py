"""Pruning in one call: score, compensate, cut, certify; and train what is left, where steps are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch import nn
from typing_extensions import Unpack

from depl0.config import GateChanges, GateConfig
from depl0.gated import attach
from depl0.host.network import check_host, private_copy
from depl0.search.calibration import MOST_BATCHES, Calibration, Loss
from depl0.search.freezing import freeze_network
from depl0.search.recovery.finetune import Lesson, check_training, pair, train_compact
from depl0.search.scores.reconstruction import reconstruction_scores


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

    Channels are judged by the error that is left when the layers behind them make up for their loss; those layers are
    then fitted in closed form. With ``steps`` the compact network is trained after that, and a classifier also learns
    from the answers of the network as it was. ``depl0.info`` tells what was cut.

    A network that is not trained yet, or gates that are learned while it trains, want a :class:`depl0.Search`.

    Args:
        model: a trained network.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments that the network runs on.
        data: batches of inputs, without labels; 1,024 examples are enough. With ``steps``: batches (inputs, targets),
            one for each step, from the beginning again if there are fewer.
        steps: training steps after the cut; None: no training.
        loss: the loss of the task, ``loss(outputs, targets)``; None: cross entropy, and a share of learning from the
            given network.
        lr: the learning rate of the weights, where they are trained.
        changes: fields of :class:`depl0.GateConfig`: ``budget`` (0.5 by default), ``of``, ``groups``, ``round_to``, …
    """
    config = GateConfig(budget=0.5).changed(**changes).changed(generator="independent")
    if steps is not None:
        check_training(steps, lr)
        data = list(islice(data, max(steps, MOST_BATCHES))) if isinstance(data, Iterator) else data
        for batch in islice(data, 1):
            pair(batch)
    lesson = None if steps is None else Lesson(private_copy(check_host(model)), loss)
    gated = attach(private_copy(check_host(model)), example_inputs, config)
    calibration = Calibration.of(data, None if lesson is None else lesson.task_loss)
    assert calibration is not None, "data are batches"
    inputs = calibration.inputs()
    scores = reconstruction_scores(gated, inputs, config.of)
    once = Calibration(inputs, inputs, inputs)
    freeze_network(gated, config.budget, config.of, scores=scores, calibration=once, compensated=True)
    compact = gated.extract()
    if lesson is not None and steps is not None:
        train_compact(compact, lesson, data, steps, lr)
    return compact
