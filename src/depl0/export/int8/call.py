"""int8 files from Python: any network, calibration images, and a function that says what a network is worth."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from depl0._util.io import write_whole
from depl0._util.metric import ACCURACY, Metric
from depl0.errors import FixedBatchError, InputError
from depl0.export.int8.accept import Note, Quantized, Score, quantize_within
from depl0.export.int8.onnx import OnnxQuantizer
from depl0.export.int8.quantizer import IMAGES, Quantizer, calibration_inputs
from depl0.export.int8.torchao import TorchaoQuantizer
from depl0.export.onnx import export_onnx
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, evaluation_mode, run_checked

Metadata: TypeAlias = Mapping[str, str] | Callable[[Quantized], Mapping[str, str]] | None
"""what a file says of itself; may be a function of what was found"""


def quantize_onnx(
    module: nn.Module,
    example: ExampleInputs | Tensor,
    calibration: Iterable[Any],
    path: str | os.PathLike[str] | None = None,
    *,
    score: Score | None = None,
    max_drop: float = 1.0,
    metric: Metric = ACCURACY,
    images: int = IMAGES,
    opset: int | None = None,
    dynamic_batch: bool = False,
    weight_bits: int | None = None,
    metadata: Metadata = None,
    note: Note = lambda text: None,
) -> Quantized:
    """Return any network as an int8 ONNX file; with ``path``, write it there as well.

    ``calibration`` gives batches of inputs, normalised as in training. ``score`` is given something to call in the
    network's place and returns its metric: the float and the int8 file are judged by it, and a file that loses more
    than ``max_drop`` is refused. Without ``score`` nothing is measured and nothing refused. ``weight_bits`` is 8 or 7;
    left out, 7 on x86 processors without VNNI, where 8 saturate. ``metadata`` may be a function of the result.
    """
    if weight_bits not in (None, 7, 8):
        raise InputError(f"weight_bits must be 7 or 8, or be left out, got {weight_bits!r} instead.")
    inputs, outputs = _checked(module, example, calibration, images, max_drop)
    data = export_onnx(module, example, opset=opset, dynamic_batch=dynamic_batch)
    quantizer = OnnxQuantizer(data, inputs, outputs, weight_bits)
    return _finished(quantizer, quantize_within(quantizer, inputs, score, max_drop, metric, note), metadata, path)


def quantize_pt2(
    module: nn.Module,
    example: ExampleInputs | Tensor,
    calibration: Iterable[Any],
    path: str | os.PathLike[str] | None = None,
    *,
    score: Score | None = None,
    max_drop: float = 1.0,
    metric: Metric = ACCURACY,
    images: int = IMAGES,
    dynamic_batch: bool | None = None,
    metadata: Metadata = None,
    note: Note = lambda text: None,
) -> Quantized:
    """Return any network as an int8 ``.pt2`` file, by torchao; everything else is as in :func:`quantize_onnx`.

    The batch size stays free where the network allows it; ``dynamic_batch`` insists on that, or on the example's.
    """
    inputs, outputs = _checked(module, example, calibration, images, max_drop)
    given = ExampleInputs.of(example)
    try:
        quantizer = TorchaoQuantizer(module, given, inputs, outputs, dynamic_batch is not False)
    except FixedBatchError:
        if dynamic_batch is not None:
            raise
        quantizer = TorchaoQuantizer(module, given, inputs, outputs)
    return _finished(quantizer, quantize_within(quantizer, inputs, score, max_drop, metric, note), metadata, path)


def _checked(
    module: nn.Module, example: ExampleInputs | Tensor, calibration: Iterable[Any], images: int, max_drop: float
) -> tuple[list[tuple[Tensor, ...]], Any]:
    """Check what is given; return the calibration images and what the network gives on its example."""
    check_max_drop(max_drop)
    check_host(module)
    inputs = calibration_inputs(calibration, images)
    with evaluation_mode(module), torch.no_grad():
        return inputs, run_checked(module, ExampleInputs.of(example))


def _finished(
    quantizer: Quantizer, found: Quantized, metadata: Metadata, path: str | os.PathLike[str] | None
) -> Quantized:
    """Write metadata into a file that is good enough, and the file to its place."""
    found = dataclasses.replace(found, weight_bits=quantizer.weight_bits)
    if metadata is not None:
        facts = metadata(found) if callable(metadata) else metadata
        found = dataclasses.replace(found, data=quantizer.describe(found.data, facts))
    if path is not None:
        write_whole(Path(path), found.data)
    return found


def check_max_drop(value: float) -> None:
    """Refuse a loss that is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InputError(f"max_drop must be a number of at least 0, got {value!r} instead.")
