"""int8 files of any network: quantised on calibration images, and kept only if they lose little enough."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.io import write_whole
from depl0._util.metric import ACCURACY, Metric
from depl0.errors import ExportError, FixedBatchError, InputError
from depl0.export.int8.onnx import OnnxQuantizer
from depl0.export.int8.quantizer import IMAGES, Quantizer, Run, calibration_inputs
from depl0.export.int8.torchao import TorchaoQuantizer
from depl0.export.onnx import export_onnx
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, evaluation_mode, run_checked

Score = Callable[[Run], float]
"""the metric of a network that is called as the original is"""
Note = Callable[[str], None]

MOST_IN_FLOAT = 0.5
"""share of the layers that may stay in float; with more, the file is hardly smaller"""
SENSITIVITY_IMAGES = 64


@dataclass(frozen=True)
class Quantized:
    """An int8 file, its metric, and which of its layers are still in float."""

    data: bytes = field(repr=False)
    run: Run = field(repr=False)
    before: float | None
    """the metric of the float file; None: nothing was measured"""
    after: float | None
    in_float: tuple[str, ...] = ()
    weight_bits: int = 8
    """7 where products of 8 bits would saturate on the processor that judged the file"""

    def __str__(self) -> str:
        """Say what the file is, in a line."""
        judged = "" if self.after is None else f", {self.before:.6g} in float, {self.after:.6g} in int8"
        left = f", in float: {', '.join(self.in_float)}" if self.in_float else ""
        return f"int8 file of {len(self.data):,} bytes with weights of {self.weight_bits} bits{judged}{left}"


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
    """Quantize any network to an int8 ONNX file.

    Args:
        module: the network, which is not modified.
        example: inputs that it takes.
        calibration: batches of inputs, normalised as in training.
        path: also write the file here.
        score: given something to call in the network's place, returns its metric. The float and the int8 file are
            judged by it; without it, nothing is measured and nothing refused.
        max_drop: how much of the metric may be lost. Layers that lose most are left in float to stay within it.
        metric: what ``score`` returns.
        images: number of calibration images.
        opset: ONNX opset.
        dynamic_batch: leave the batch size free.
        weight_bits: 8 or 7; by default 7 on x86 processors without VNNI, where products of 8 bits saturate.
        metadata: what the file says of itself; may be a function of the result.
        note: called with a line of text about the progress.

    Raises:
        ExportError: int8 loses more than ``max_drop``, or the network cannot be quantized.
        InputError: an argument is invalid.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> images = torch.rand(4, 3, 8, 8)
        >>> quantize_onnx(network, images[:1], [images]).run(images).shape
        torch.Size([4, 8, 6, 6])
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
    """Quantize any network to an int8 ``.pt2`` file by torchao; everything else is as in :func:`quantize_onnx`.

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
    if isinstance(max_drop, bool) or not isinstance(max_drop, (int, float)) or not max_drop >= 0:
        raise InputError(f"max_drop must be a number of at least 0, got {max_drop!r} instead.")
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


# -- what is good enough -----------------------------------------------------------------------------------------------


def quantize_within(
    quantizer: Quantizer,
    inputs: list[tuple[Tensor, ...]],
    score: Score | None,
    max_drop: float = 1.0,
    metric: Metric = ACCURACY,
    note: Note = lambda text: None,
) -> Quantized:
    """Write all layers in int8; if that loses too much, leave the most sensitive ones in float, or refuse.

    How many stay in float is doubled until the loss is within ``max_drop``, or half of the layers are.
    """
    data = quantizer.encode()
    run = quantizer.open(data)
    if score is None:
        return Quantized(data, run, None, None)
    before = score(quantizer.in_float())
    found = Quantized(data, run, before, score(run))
    if _drop(found, metric) <= max_drop:
        return found
    note(f"all in int8: {_figures(found, metric)}; looking for the layers that lose most")
    best, order, number = found, sensitive_layers(quantizer, inputs), 1
    while number <= len(order) * MOST_IN_FLOAT:
        in_float = order[:number]
        data = quantizer.encode(in_float)
        run = quantizer.open(data)
        found = Quantized(data, run, before, score(run), tuple(in_float))
        note(f"{number} of {len(order)} layers in float: {_figures(found, metric)}")
        if _drop(found, metric) <= max_drop:
            return found
        best = min(best, found, key=lambda each: _drop(each, metric))
        number *= 2
    left = f"with {len(best.in_float)} layers left in float ({', '.join(best.in_float)})" if best.in_float else ""
    raise ExportError(
        f"int8 loses too much: {_figures(best, metric)} at best{' ' + left if left else ''}; "
        f"max_drop allows {metric.number(max_drop)}. Nothing is written.",
        hint="allow more with max_drop, calibrate with more images, or export in float.",
    )


def sensitive_layers(quantizer: Quantizer, inputs: list[tuple[Tensor, ...]]) -> list[str]:
    """Order layers by what each does to the outputs when it alone is in int8, the worst first."""
    some = tuple(tensor[:SENSITIVITY_IMAGES] for tensor in inputs[0])
    wanted = _flat(quantizer.in_float()(*some))
    errors = {}
    for layer in quantizer.layers:
        others = [other for other in quantizer.layers if other != layer]
        found = _flat(quantizer.open(quantizer.encode(others))(*some))
        errors[layer] = float((found - wanted).square().mean())
    return sorted(errors, key=lambda layer: -errors[layer])


def _flat(outputs: object) -> Tensor:
    tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def _drop(found: Quantized, metric: Metric) -> float:
    assert found.before is not None and found.after is not None
    drop = found.before - found.after if metric.higher_is_better else found.after - found.before
    return drop if drop == drop else float("inf")


def _figures(found: Quantized, metric: Metric) -> str:
    assert found.before is not None and found.after is not None
    return f"{metric.label} {metric.show(found.before)} in float, {metric.show(found.after)} in int8"
