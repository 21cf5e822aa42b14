"""The network to export, from a run's folder, or from a compact network's folder and a factory of the dense network."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import depl0
from depl0._util.user_code import shown_spec
from depl0.app.data import shown_data
from depl0.app.models.spec import ImageSize, factory, image_size
from depl0.app.runs.folder import RunFolder, find_compact
from depl0.app.runs.paths import recipe_of_run
from depl0.app.tasks import metric_in
from depl0.errors import InputError
from depl0.surgery.files import load, read_record
from depl0.surgery.record import CompactRecord

METADATA_VERSION = 1
_FACTORY = "pass what builds the dense network: --model FACTORY, e.g. resnet20, timm:resnet18 or path/to/file.py:make."


@dataclass(frozen=True)
class Source:
    """A compact network in evaluation mode, example inputs, and its metadata."""

    module: nn.Module
    example: tuple[Tensor, ...]
    metadata: dict[str, str]
    make: Callable[[], nn.Module]
    """builds the dense network"""


def open_source(path: Path, model: str | None = None, shape: tuple[int, ...] | None = None) -> Source:
    """Load the compact network of a folder. ``shape`` is that of one input without its batch size."""
    folder, recipe_file = find_compact(path)
    record = read_record(folder)
    summary = _published((RunFolder(recipe_file.parent).summary() if recipe_file else None) or {})
    example = _example(path, record, shape)
    make = _factory(path, model, record, recipe_file, _sizes(record, summary, example))
    return Source(load(folder, make).eval(), example, _metadata(record, summary, example), make)


def _published(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without local folders."""
    shown = {"model": shown_spec, "method": shown_spec, "data": shown_data}
    return {**summary, **{key: show(str(summary[key])) for key, show in shown.items() if summary.get(key)}}


def _example(path: Path, record: CompactRecord, shape: tuple[int, ...] | None) -> tuple[Tensor, ...]:
    if shape is not None:
        return (torch.zeros(1, *shape),)
    if not record.inputs:
        raise InputError(
            f"{path} does not say which inputs its network takes.", hint="pass the shape of one: --shape 3,224,224."
        )
    return tuple(torch.zeros(1, *sizes[1:]) for sizes in record.inputs)


def _factory(
    path: Path,
    model: str | None,
    record: CompactRecord,
    recipe_file: Path | None,
    sizes: tuple[int | None, int, ImageSize],
) -> Callable[[], nn.Module]:
    """Return the factory of the dense network, from the user's spec or from the recipe of the run."""
    if model is not None:
        return factory(model, *sizes)
    if recipe_file is None:
        raise InputError(
            f"{path} holds a compact {record.network}, but not what builds the dense {record.network}.", hint=_FACTORY
        )
    spec = recipe_of_run(recipe_file).model.spec
    try:
        return factory(spec, *sizes)
    except InputError as error:
        raise InputError(f"the network of {path} cannot be built. {error.message}", hint=_FACTORY) from error


def _sizes(
    record: CompactRecord, summary: Mapping[str, Any], example: tuple[Tensor, ...]
) -> tuple[int | None, int, ImageSize]:
    """Return outputs, channels and image size. Without a summary, outputs are counted from the last parameter."""
    shape = example[0].shape
    known = summary.get("input", {})
    shapes = [sizes for name, sizes in record.dense_shapes.items() if sizes and name.endswith(("weight", "bias"))]
    last = shapes[-1] if shapes else (1,)  # buffers come after all parameters and do not show the number of outputs
    outputs = known.get("num_outputs", known.get("num_classes", last[0]))
    size = image_size(*map(int, shape[-2:])) if len(shape) == 4 else int(shape[-1])
    return None if outputs is None else int(outputs), int(shape[1] if len(shape) > 1 else 1), size


def _metadata(record: CompactRecord, summary: Mapping[str, Any], example: tuple[Tensor, ...]) -> dict[str, str]:
    """Return the metadata of the file. Unknown values are left out; lists are JSON."""
    images, dense, compact = (summary.get(part, {}) for part in ("input", "dense", "compact"))
    metric = metric_in(summary).name
    facts = {
        "metadata_version": METADATA_VERSION,
        "version": depl0.__version__,
        "network": record.network,
        "model": summary.get("model"),
        "data": summary.get("data"),
        "input_shapes": [list(tensor.shape) for tensor in example],
        "input_mean": images.get("mean"),
        "input_std": images.get("std"),
        "class_names": images.get("class_names"),
        "metric": metric if metric in compact else None,
        metric: compact.get(metric),
        f"dense_{metric}": dense.get(metric),
        "budget": summary.get("budget"),
        "budget_of": summary.get("budget_of"),
        "params": record.compact.params,
        "macs": record.compact.macs,
        "dense_params": record.dense.params,
        "dense_macs": record.dense.macs,
    }
    return {
        f"depl0.{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in facts.items()
        if value is not None
    }
