"""Quantize networks to int8 ONNX files by ONNX Runtime's static quantization.

Files are QDQ graphs with int8 weights, one scale per output channel, and uint8 activations, with which ONNX Runtime is
faster on x86 than with int8 activations.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.io import atomic_write
from depl0._util.optional import require
from depl0.equivalence.comparison import INT8_FILES
from depl0.errors import ExportError, InputError
from depl0.export.onnx import Onnx, export_onnx
from depl0.export.targets import Request, Target, numbered, tool_errors
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, evaluation_mode, run_checked
from depl0.latency import open_session
from depl0.metric import ACCURACY, Metric

Run: TypeAlias = Callable[..., Any]
"""has the signature of the network and returns its outputs, on the CPU"""
Score: TypeAlias = Callable[[Run], float]
"""returns the metric of a network"""

IMAGES = 512
"""calibration images"""


@dataclass(frozen=True)
class Quantized:
    """An int8 file and its metric."""

    data: bytes = field(repr=False)
    run: Run = field(repr=False)
    before: float | None
    """metric of the float file; None without ``score``"""
    after: float | None
    weight_bits: int = 8
    """7 if products of 8 bits would saturate"""

    def __str__(self) -> str:
        """Describe the file in a line."""
        scores = "" if self.after is None else f", {self.before:.6g} in float, {self.after:.6g} in int8"
        return f"int8 file of {len(self.data):,} bytes with weights of {self.weight_bits} bits{scores}"


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
    metadata: Mapping[str, str] | None = None,
) -> Quantized:
    """Quantize a network to an int8 ONNX file.

    Args:
        module: the network, which is not modified.
        example: inputs for it.
        calibration: batches of inputs, normalised as in training.
        path: also write the file here.
        score: returns the metric of a callable that replaces the network. The float and the int8 file are both
            evaluated by it. Without it, nothing is measured and every file is accepted.
        max_drop: largest allowed loss of the metric.
        metric: what ``score`` returns.
        images: number of calibration images.
        opset: ONNX opset.
        dynamic_batch: leave the batch size free.
        weight_bits: 8 or 7; by default 7 on x86 processors without VNNI, where products of 8 bits saturate.
        metadata: entries of the file's ``metadata_props``, beside those that say how it was quantized.

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
    if isinstance(max_drop, bool) or not isinstance(max_drop, (int, float)) or not max_drop >= 0:
        raise InputError(f"max_drop must be a number of at least 0, got {max_drop!r} instead.")
    check_host(module)
    inputs, bits = calibration_inputs(calibration, images), weight_bits or bits_without_saturation()
    with evaluation_mode(module), torch.no_grad():
        outputs = run_checked(module, ExampleInputs.of(example))
    original = export_onnx(module, example, opset=opset, dynamic_batch=dynamic_batch)
    with tool_errors("ONNX Runtime cannot quantize the network", "export it in float"):
        proto = _quantize(original, inputs, bits)
        run = _open(proto.SerializeToString(), outputs)
    before = None if score is None else score(_open(original, outputs))
    after = None if score is None else score(run)
    if before is not None and after is not None:
        _check_drop(before, after, max_drop, metric)
    facts: dict[str, Any] = {"int8": True, "calibration_images": images, "weight_bits": bits}
    if after is not None:
        facts |= {"metric": metric.name, f"float_{metric.name}": before, metric.name: after}
    known = {f"depl0.{key}": fact if isinstance(fact, str) else json.dumps(fact) for key, fact in facts.items()}
    require("onnx", "onnx", "to write int8 files").helper.set_model_props(proto, {**(metadata or {}), **known})
    found = Quantized(bytes(proto.SerializeToString()), run, before, after, bits)
    if path is not None:
        atomic_write(Path(path), found.data)
    return found


def _check_drop(before: float, after: float, max_drop: float, metric: Metric) -> None:
    drop = before - after if metric.higher_is_better else after - before
    if not drop <= max_drop:
        raise ExportError(
            f"int8 loses too much: {metric.label} {metric.show(before)} in float, {metric.show(after)} in int8; "
            f"max_drop allows {metric.number(max_drop)}. Nothing is written.",
            hint="allow more with max_drop, calibrate with more images, or export in float.",
        )


@final
class Int8Onnx(Target):
    """An int8 ONNX file: another process must get the outputs that were computed here."""

    name: ClassVar[str] = Onnx.name
    suffix: ClassVar[str] = ".int8.onnx"
    reader: ClassVar[str] = Onnx.reader
    tolerance: ClassVar[float] = INT8_FILES

    def __init__(self, data: bytes, run: Run) -> None:
        self._data, self._run = data, run

    def encode(self, request: Request) -> bytes:
        """Return the file."""
        return self._data

    def expected(self, request: Request) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Expect the outputs of the file in this process."""
        cases = request.cases()
        outputs = [[leaf for leaf in pytree.tree_leaves(self._run(*c)) if isinstance(leaf, Tensor)] for c in cases]
        return numbered(cases), numbered(outputs)


# -- ONNX Runtime ------------------------------------------------------------------------------------------------------


def _quantize(data: bytes, inputs: list[tuple[Tensor, ...]], weight_bits: int) -> Any:
    """Return the int8 graph of a float file."""
    onnx = require("onnx", "onnx", "to write int8 files", extra="export")
    tools = require("onnxruntime.quantization", "onnxruntime", "to quantize", extra="export")
    with tempfile.TemporaryDirectory() as folder:
        source, prepared, file = (Path(folder) / f"{name}.onnx" for name in ("float", "prepared", "int8"))
        source.write_bytes(data)
        preprocessing = require("onnxruntime.quantization.shape_inference", "onnxruntime", "to quantize")
        preprocessing.quant_pre_process(source, prepared, skip_symbolic_shape=True)
        values = onnx.load(prepared).graph.input
        size = values[0].type.tensor_type.shape.dim[0].dim_value or None
        feeds = (
            {value.name: tensor.numpy() for value, tensor in zip(values, part, strict=True)}
            for batch in inputs
            for part, _ in _of_size(batch, size)
        )

        class Reader(tools.CalibrationDataReader):  # type: ignore[misc, name-defined]
            def get_next(self) -> dict[str, Any] | None:
                return next(feeds, None)

        tools.quantize_static(
            prepared,
            file,
            Reader(),
            per_channel=True,
            reduce_range=weight_bits < 8,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
        )
        proto = onnx.load(file)
    if not any(tensor.data_type == onnx.TensorProto.INT8 for tensor in proto.graph.initializer):
        raise ExportError("the network has no convolution and no linear layer that could be written in int8.")
    used = {node.domain for node in proto.graph.node}
    for entry in [entry for entry in proto.opset_import if entry.domain not in used]:
        proto.opset_import.remove(entry)
    del proto.graph.value_info[:]
    return proto


def _open(data: bytes, like: Any) -> Run:
    """Return a callable that runs a file, in batches of the size that it was exported for.

    Args:
        data: the file.
        like: outputs of the network, whose structure is that of the callable's outputs.
    """
    session = open_session(data, torch.get_num_threads())
    names, (first, *_) = [value.name for value in session.get_inputs()], session.get_inputs()[0].shape
    size = first if isinstance(first, int) else None
    leaves, structure = pytree.tree_flatten(like)

    def run(*inputs: Tensor) -> Any:
        parts = []
        for part, rows in _of_size(tuple(tensor.detach().cpu() for tensor in inputs), size):
            feed = {name: tensor.numpy() for name, tensor in zip(names, part, strict=True)}
            parts.append([torch.from_numpy(output)[:rows] for output in session.run(None, feed)])
        tensors = iter([torch.cat(list(outputs)) for outputs in zip(*parts, strict=True)])
        return pytree.tree_unflatten([next(tensors) if isinstance(x, Tensor) else x for x in leaves], structure)

    return run


def _of_size(inputs: tuple[Tensor, ...], size: int | None) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """Yield parts of a batch with the number of valid rows; the last part is padded to the size."""
    count = len(inputs[0])
    for start in range(0, count, size or count):
        part = tuple(tensor[start : start + (size or count)] for tensor in inputs)
        rows = len(part[0])
        if size is not None and rows < size:
            part = tuple(tensor[[*range(rows), *[rows - 1] * (size - rows)]] for tensor in part)
        yield part, rows


X86 = ("x86_64", "amd64")
VNNI = {"avx512_vnni", "avx_vnni"}
"""flags of the instructions in Linux"""
CPUINFO = Path("/proc/cpuinfo")


def bits_without_saturation() -> int:
    """Return how many bits int8 weights may use on this processor: 8, or 7 on x86 without VNNI.

    x86 processors multiply uint8 activations by int8 weights and add neighbouring products. With VNNI the sum has 32
    bits. Without it, the sum has 16 bits, and 255·127 + 255·127 overflows silently. Weights of 7 bits cannot overflow.
    """
    if platform.machine().lower() not in X86:
        return 8
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
    return 8 if VNNI & flags else 7


# -- calibration data --------------------------------------------------------------------------------------------------


def calibration_inputs(batches: Iterable[Any], images: int = IMAGES) -> list[tuple[Tensor, ...]]:
    """Return the first batches up to this number of images, each as the tensors that the network is called with.

    A batch is a tensor, or a tuple or list of the network's arguments; the last one is cut.
    """
    found: list[tuple[Tensor, ...]] = []
    remaining = images
    for number, batch in enumerate([batches] if isinstance(batches, Tensor) else batches):
        name = f"batch {number} of the calibration images"
        inputs = ExampleInputs.of(tuple(batch) if isinstance(batch, list) else batch, name)
        if inputs.kwargs or not all(isinstance(arg, Tensor) and arg.dim() > 0 for arg in inputs.args):
            raise InputError(
                f"{name} must be a tensor or a tuple of tensors, got {type(batch).__name__} instead.",
                hint="leave labels out: a batch holds the arguments of the network.",
            )
        if not all(bool(tensor.isfinite().all()) for tensor in inputs.args):
            raise InputError(f"{name} holds values that are not finite.")
        found.append(tuple(tensor[:remaining].detach().cpu() for tensor in inputs.args))
        remaining -= inputs.batch()
        if remaining <= 0:
            break
    if not found:
        raise InputError(
            "int8 needs calibration images, and there are none.",
            hint="pass some hundred training images, normalised as in training.",
        )
    return found
