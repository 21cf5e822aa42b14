"""Accuracy on the test images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from depl0._host import ExampleInputs, evaluation_mode, run_checked
from depl0.errors import InputError


def class_scores(outputs: Any) -> Tensor:
    """Return the class scores of a network that may give more than that (auxiliary heads, dicts)."""
    if isinstance(outputs, Tensor):
        return outputs
    first = None
    if isinstance(outputs, dict):
        first = outputs.get("out", outputs.get("logits"))
    elif isinstance(outputs, (tuple, list)) and outputs:
        first = outputs[0]
    if isinstance(first, (Tensor, dict, tuple, list)):
        return class_scores(first)
    raise InputError(
        f"the network must return class scores (a tensor), got {type(outputs).__name__} instead.",
        hint="wrap it in a module whose forward returns the scores.",
    )


def check_classes(model: nn.Module, images: Tensor, num_classes: int) -> None:
    """Refuse a network whose scores are not one per class of the data."""
    with evaluation_mode(model):
        scores = class_scores(run_checked(model, ExampleInputs.of(images)))
    if scores.dim() != 2 or scores.shape[1] != num_classes:
        raise InputError(
            f"the network gives scores of shape {tuple(scores.shape)}, but the data has {num_classes} classes.",
            hint=f"build the network with {num_classes} classes; a callable may take num_classes.",
        )


@torch.no_grad()
def evaluate(engine: Accelerator, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the accuracy in percent, over all processes. Every module's mode is kept."""
    counts = torch.zeros(2, dtype=torch.float64 if engine.device.type != "mps" else torch.float32, device=engine.device)
    with evaluation_mode(model):
        for images, labels in batches:
            with engine.autocast():
                scores = class_scores(model(images))
            counts[0] += (scores.argmax(1) == labels).sum()
            counts[1] += len(labels)
    correct, total = engine.reduce(counts, reduction="sum").tolist()
    return float(100.0 * correct / total)
