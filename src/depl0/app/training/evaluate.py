"""The metric of a task on validation or test data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0.app.data import Data
from depl0.app.tasks import Task
from depl0.errors import DataError
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, batches: Iterable[tuple[Any, Any]], task: Task) -> float:
    """Return the task's metric over all batches and processes. Every module's mode is restored.

    Raises:
        DataError: inputs hold NaN or infinite values, which would count as wrong predictions.
    """
    sums: Tensor | None = None
    damaged = torch.zeros((), device=accelerator.device)
    with evaluation_mode(model):
        for inputs, targets in batches:
            for leaf in pytree.tree_leaves(inputs):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    damaged += ~leaf.isfinite().all()
            with accelerator.autocast():
                outputs = call(model, inputs)
            measured = task.measure(outputs, targets)
            sums = measured if sums is None else sums + measured
    assert sums is not None, "there is always something to evaluate on"
    count = int(accelerator.reduce(damaged, reduction="sum"))
    if count:
        raise DataError(
            f"examples to evaluate on hold NaN or infinite values, in {count:,} of the batches.",
            hint="look for a transform that divides by zero, or for damaged files.",
        )
    return task.value(accelerator.reduce(sums, reduction="sum"))


class Scores(NamedTuple):
    """A network's metric on the validation and the test images."""

    test: float
    validation: float | None
    """None if no images are held out for choices"""


def final_scores(accelerator: Accelerator, model: nn.Module, data: Data, task: Task) -> Scores:
    """Evaluate a finished network once. No choice depends on the test images."""
    test = evaluate(accelerator, model, data.test.epoch(0), task)
    held_out = data.validation
    return Scores(test, None if held_out is None else evaluate(accelerator, model, held_out.epoch(0), task))
