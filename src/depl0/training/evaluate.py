"""The metric of a task on the test data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from depl0._host import evaluation_mode
from depl0.tasks import Task


@torch.no_grad()
def evaluate(engine: Accelerator, model: nn.Module, batches: Iterable[tuple[Any, Any]], task: Task) -> float:
    """Return the task's metric over all batches and processes. Every module's mode is kept."""
    sums: Tensor | None = None
    with evaluation_mode(model):
        for inputs, targets in batches:
            with engine.autocast():
                outputs = model(inputs)
            measured = task.measure(outputs, targets)
            sums = measured if sums is None else sums + measured
    assert sums is not None, "there is always something to evaluate on"
    return task.value(engine.reduce(sums, reduction="sum"))
