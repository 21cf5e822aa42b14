"""Pruning in one call, without training: score, compensate, cut, certify."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from typing_extensions import Unpack

from depl0._host import check_host, private_copy
from depl0.config import GateChanges, GateConfig
from depl0.gated import attach
from depl0.pruning.calibration import Calibration
from depl0.pruning.freezing import freeze_network
from depl0.pruning.reconstruction import reconstruction_scores


def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    **changes: Unpack[GateChanges],
) -> nn.Module:
    """Return a compact network within a budget, from some inputs and without any training. The model is not modified.

    Channels are judged by the error that is left when the layers behind them make up for their loss; those layers are
    then fitted in closed form. For a network that was trained, in seconds to minutes; train it on for more accuracy.
    ``depl0.info`` tells what was cut.

    Args:
        model: a trained network.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments that the network runs on.
        data: batches of inputs, without labels; 1,024 examples are enough.
        changes: fields of :class:`depl0.GateConfig`: ``budget`` (0.5 by default), ``of``, ``groups``, ``round_to``, …
    """
    config = GateConfig(budget=0.5).changed(**changes).changed(generator="independent")
    gated = attach(private_copy(check_host(model)), example_inputs, config)
    calibration = Calibration.of(data, None)
    assert calibration is not None, "data are batches"
    inputs = calibration.inputs()
    scores = reconstruction_scores(gated, inputs, config.of)
    once = Calibration(inputs, inputs, inputs)
    freeze_network(gated, config.budget, config.of, scores=scores, calibration=once, compensated=True)
    return gated.extract()
