"""Write the int8 file of a run after it was evaluated on the test set and verified by another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from depl0.app.data import Data
from depl0.app.deploy.source import Source
from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.folder import find_compact
from depl0.app.runs.paths import recipe_of_run
from depl0.app.tasks import Metric, Task
from depl0.app.training.setup import open_data_for
from depl0.errors import DataError, InputError
from depl0.export.checked import Exported, write_checked
from depl0.export.int8 import IMAGES, Int8Onnx, Quantized, Run, Score, quantize_onnx
from depl0.export.targets import Request
from depl0.host.inputs import ExampleInputs


def export_int8(
    path: Path,
    source: Source,
    out: Path,
    *,
    data: str | None = None,
    task: str | None = None,
    images: int = IMAGES,
    **options: Any,
) -> tuple[Exported, Quantized, Metric]:
    """Quantize the network of a run on training images, evaluate it on the test set, and write it if that allows.

    Return the file, the network's metric before and after, and the kind of metric.

    ``data`` is where the run's data is now, if it has moved. ``data`` and ``task`` are those of a folder that has no
    run; ``options`` are passed to :func:`depl0.export.int8.quantize_onnx`.
    """
    recipe = recipe_with_data(path, data, task)
    opened, task_ = open_images(recipe), task_of(recipe)
    found = quantize_onnx(
        source.module,
        ExampleInputs(source.example, {}),
        training_images(opened),
        score=test_score(opened, task_),
        metric=task_.metric,
        images=images,
        metadata=source.metadata,
        **options,
    )
    request = Request(source.module, source.example, {}, options.get("opset"), options.get("dynamic_batch", False))
    return write_checked(Int8Onnx(found.data, found.run), request, out), found, task_.metric


def recipe_with_data(path: Path, data: str | None = None, task: str | None = None) -> Recipe:
    """Return the recipe of a run, with its data or task replaced. They are required for a folder that has no run."""
    _, recipe_file = find_compact(path)
    given = {key: value for key, value in (("data.spec", data), ("task.spec", task)) if value is not None}
    if recipe_file is not None:
        return with_overrides(recipe_of_run(recipe_file, given), given)
    if data is None:
        raise InputError(
            f"int8 needs calibration images and a test set, and {path} is a compact network without its run.",
            hint="pass --data (and --task, if it is not classification), or call depl0.export.quantize_onnx.",
        )
    return with_overrides(catalog.get("custom"), given)


def open_images(recipe: Recipe) -> Data:
    """Open the data of a run without augmentation, so that ranges are calibrated on images as in deployment."""
    try:
        return open_data_for(with_overrides(recipe, {"data.augment": "none"}), "cpu")
    except (DataError, InputError) as error:
        raise InputError(
            f"int8 needs calibration images, and the data of the run cannot be opened: {error.message}",
            hint="pass their present location: --data, or options.data.",
        ) from error


def training_images(data: Data) -> Iterator[Tensor]:
    """Yield the inputs of training batches."""
    return (inputs for inputs, _ in data.train.epoch(0))


def test_score(data: Data, task: Task) -> Score:
    """Return a function that evaluates a network on the whole test set and returns the task's metric."""

    def score(run: Run) -> float:
        sums: Tensor | None = None
        for inputs, targets in data.test.epoch(0):
            measured = task.measure(run(inputs), targets)
            sums = measured if sums is None else sums + measured
        assert sums is not None, "there is always something to evaluate on"
        return task.value(sums)

    return score
