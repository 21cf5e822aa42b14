"""What int8 needs of a run: images to calibrate on, and the test set to judge by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from depl0.app.data import Data
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe, with_overrides
from depl0.app.runs.folder import find_compact
from depl0.app.tasks import Metric, Task
from depl0.app.training.setup import open_data_for
from depl0.errors import DataError, InputError
from depl0.export.int8.accept import Quantized, Score
from depl0.export.int8.quantizer import Run


def recipe_with_data(path: Path, data: str | None = None) -> Recipe:
    """Return the recipe of a run; ``data`` says where its data is now."""
    _, recipe_file = find_compact(path)
    if recipe_file is None:
        raise InputError(
            f"int8 needs calibration images and a test set, and {path} is a compact network without its run.",
            hint="export the run's own folder, or call depl0.export.quantize_onnx with images of your own.",
        )
    recipe = read_recipe(recipe_file)
    return recipe if data is None else with_overrides(recipe, {"data.spec": data})


def open_images(recipe: Recipe) -> Data:
    """Open the data of a run without augmentation: ranges are measured on images as the network will see them."""
    try:
        return open_data_for(with_overrides(recipe, {"data.augment": "none"}), "cpu")
    except (DataError, InputError) as error:
        raise InputError(
            f"int8 needs calibration images, and the data of the run cannot be opened: {error.message}",
            hint="say where it is now with --data.",
        ) from error


def training_images(data: Data) -> Iterator[Tensor]:
    """Give the inputs of training batches."""
    return (inputs for inputs, _ in data.train.epoch(0))


def test_score(data: Data, task: Task) -> Score:
    """Return the function that runs a network over the whole test set and gives the task's metric."""

    def score(run: Run) -> float:
        sums: Tensor | None = None
        for inputs, targets in data.test.epoch(0):
            measured = task.measure(run(inputs), targets)
            sums = measured if sums is None else sums + measured
        assert sums is not None, "there is always something to evaluate on"
        return task.value(sums)

    return score


def int8_metadata(metadata: dict[str, str], found: Quantized, metric: Metric, images: int) -> dict[str, str]:
    """Return what an int8 file says of itself: its own metric in the place of the float network's."""
    facts: dict[str, Any] = {
        "int8": True,
        "calibration_images": images,
        "weight_bits": found.weight_bits,
        "float_layers": list(found.in_float),
        "float_" + metric.name: found.before,
        "metric": metric.name,
        metric.name: found.after,
    }
    return {
        **metadata,
        **{f"depl0.{key}": v if isinstance(v, str) else json.dumps(v) for key, v in facts.items() if v is not None},
    }
