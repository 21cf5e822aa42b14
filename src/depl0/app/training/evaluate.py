"""The metric of a task on validation or test data, and a classifier's predictions before and after pruning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0.app.data import Data
from depl0.app.tasks import Task
from depl0.app.tasks.classification import Classification, class_scores
from depl0.app.training.session import Session
from depl0.errors import DataError
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call

MAX_CLASSES = 1000


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


# -- predictions -------------------------------------------------------------------------------------------------------


def compare_predictions(session: Session, dense: nn.Module | None, compact: nn.Module) -> dict[str, Any] | None:
    """Return the content of ``answers.json``; None if the task is not classification, or has too many classes.

    Args:
        session: the run.
        dense: the network that was pruned, or None if it was not trained. The figures by class are then those of the
            dense network trained beside the search, if there is one, and no predictions are compared.
        compact: the pruned network.
    """
    info = session.data.info
    if not _has_classes(session):
        return None
    labels, after = _predictions(session, compact)
    before = None if dense is None else _predictions(session, dense)[1]
    changed = labels[:0] if before is None else (before != after).nonzero().flatten()
    images, right = _by_class(session, labels), _by_class(session, labels[after == labels])
    right_dense = session.state.dense_right if before is None else _by_class(session, labels[before == labels])
    names = info.class_names or [str(label) for label in range(len(images))]
    return {
        "split": session.data.split,
        "images": sum(images),
        "changed": None if before is None else sum(_by_class(session, labels[changed])),
        "classes": [
            {
                "name": name,
                "images": images[label],
                "dense": right_dense and right_dense[label],
                "compact": right[label],
            }
            for label, name in enumerate(names)
        ],
    }


def correct_by_class(session: Session, network: nn.Module) -> list[int] | None:
    """Return the number of correct predictions in each class; None if the task is not classification."""
    if not _has_classes(session):
        return None
    labels, found = _predictions(session, network)
    return _by_class(session, labels[found == labels])


def _has_classes(session: Session) -> bool:
    return isinstance(session.task, Classification) and 1 < (session.data.info.num_classes or 0) <= MAX_CLASSES


@torch.no_grad()
def _predictions(session: Session, network: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the labels of this process's images, and the classes that a network predicts."""
    found = []
    with evaluation_mode(network), session.accelerator.autocast():
        for images, labels in session.data.for_choices.epoch(0):
            found.append(torch.stack([labels, class_scores(call(network, images)).argmax(1)]))
    labels, predicted = torch.cat(found, 1)
    return labels, predicted


def _by_class(session: Session, labels: Tensor) -> list[int]:
    """Return the number of labels of each class over all processes."""
    counts = torch.bincount(labels, minlength=session.data.info.num_classes or 0).float()
    return [int(number) for number in session.accelerator.reduce(counts, reduction="sum").tolist()]
