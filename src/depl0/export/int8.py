"""Quantize networks to int8 ONNX files by ONNX Runtime's static quantization.

Files are QDQ graphs with int8 weights, one scale per output channel, and uint8 activations, with which ONNX Runtime is
faster on x86 than with int8 activations.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.io import atomic_write
from depl0._util.metric import ACCURACY, Metric
from depl0._util.optional import require
from depl0.analysis.recording import quiet
from depl0.equivalence.comparison import INT8_FILES
from depl0.errors import Depl0Error, ExportError, InputError
from depl0.export.onnx import Onnx, export_onnx
from depl0.export.targets import Request, Target, numbered
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, evaluation_mode, first_line, run_checked

Run: TypeAlias = Callable[..., Any]
"""has the signature of the network and returns its outputs, on the CPU"""
Score: TypeAlias = Callable[[Run], float]
"""returns the metric of a network"""
Note: TypeAlias = Callable[[str], None]

IMAGES = 512
"""calibration images"""
SENSITIVITY_IMAGES = 16
MAX_FLOAT_FRACTION = 0.5
"""largest fraction of the layers that may stay in float; with more, the file is hardly smaller"""


@dataclass(frozen=True)
class Quantized:
    """An int8 file, its metric, and the layers that stayed in float."""

    data: bytes = field(repr=False)
    run: Run = field(repr=False)
    before: float | None
    """metric of the float file; None without ``score``"""
    after: float | None
    in_float: tuple[str, ...] = ()
    weight_bits: int = 8
    """7 if products of 8 bits would saturate"""

    def __str__(self) -> str:
        """Describe the file in a line."""
        scores = "" if self.after is None else f", {self.before:.6g} in float, {self.after:.6g} in int8"
        layers = f", in float: {', '.join(self.in_float)}" if self.in_float else ""
        return f"int8 file of {len(self.data):,} bytes with weights of {self.weight_bits} bits{scores}{layers}"


Metadata: TypeAlias = Mapping[str, str] | Callable[[Quantized], Mapping[str, str]] | None


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
    """Quantize a network to an int8 ONNX file.

    Args:
        module: the network, which is not modified.
        example: inputs for it.
        calibration: batches of inputs, normalised as in training.
        path: also write the file here.
        score: returns the metric of a callable that replaces the network. The float and the int8 file are both
            evaluated by it. Without it, nothing is measured and every file is accepted.
        max_drop: largest allowed loss of the metric. The most sensitive layers stay in float to meet it.
        metric: what ``score`` returns.
        images: number of calibration images.
        opset: ONNX opset.
        dynamic_batch: leave the batch size free.
        weight_bits: 8 or 7; by default 7 on x86 processors without VNNI, where products of 8 bits saturate.
        metadata: entries of the file's ``metadata_props``, or a function of the result that returns them.
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
    if isinstance(max_drop, bool) or not isinstance(max_drop, (int, float)) or not max_drop >= 0:
        raise InputError(f"max_drop must be a number of at least 0, got {max_drop!r} instead.")
    check_host(module)
    inputs = calibration_inputs(calibration, images)
    with evaluation_mode(module), torch.no_grad():
        outputs = run_checked(module, ExampleInputs.of(example))
    data = export_onnx(module, example, opset=opset, dynamic_batch=dynamic_batch)
    with tempfile.TemporaryDirectory() as folder:
        quantizer = _Quantizer(data, inputs, outputs, Path(folder), weight_bits or bits_without_saturation())
        found = _within(quantizer, score, max_drop, metric, note)
    if metadata is not None:
        onnx = require("onnx", "onnx", "to write int8 files", extra="export")
        proto = onnx.load_from_string(found.data)
        onnx.helper.set_model_props(proto, dict(metadata(found) if callable(metadata) else metadata))
        found = dataclasses.replace(found, data=bytes(proto.SerializeToString()))
    if path is not None:
        atomic_write(Path(path), found.data)
    return found


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


class _Quantizer:
    """A float ONNX file that ONNX Runtime quantizes, with some layers left in float."""

    def __init__(
        self, data: bytes, inputs: list[tuple[Tensor, ...]], outputs: Any, folder: Path, weight_bits: int
    ) -> None:
        self._onnx = require("onnx", "onnx", "to write int8 files", extra="export")
        self._tools = require("onnxruntime.quantization", "onnxruntime", "to quantize", extra="export")
        self.weight_bits, self.data, self.inputs = weight_bits, data, inputs
        self._outputs, self._prepared, self._file = outputs, folder / "prepared.onnx", folder / "int8.onnx"
        source = folder / "float.onnx"
        source.write_bytes(data)
        with _quantization_errors():
            preprocessing = require("onnxruntime.quantization.shape_inference", "onnxruntime", "to quantize")
            preprocessing.quant_pre_process(source, self._prepared, skip_symbolic_shape=True)
            proto = self._onnx.load(self._prepared)
        self._nodes = _weighted_nodes(proto.graph)
        self.layers = tuple(self._nodes)
        self._names = [value.name for value in proto.graph.input]
        self._size = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value or None
        if not self.layers:
            raise ExportError("the network has no convolution and no linear layer that could be written in int8.")

    def encode(self, in_float: Collection[str] = (), images: int | None = None) -> bytes:
        """Return the int8 file, calibrated on all images or on the first ones."""
        kinds = self._tools.QuantType
        with _quantization_errors():
            self._tools.quantize_static(
                self._prepared,
                self._file,
                self._reader(images),
                per_channel=True,
                reduce_range=self.weight_bits < 8,
                activation_type=kinds.QUInt8,
                weight_type=kinds.QInt8,
                nodes_to_exclude=[self._nodes[layer] for layer in in_float],
            )
            proto = self._onnx.load(self._file)
        used = {node.domain for node in proto.graph.node}
        for entry in [entry for entry in proto.opset_import if entry.domain not in used]:
            proto.opset_import.remove(entry)
        del proto.metadata_props[:], proto.graph.value_info[:]
        return bytes(proto.SerializeToString())

    def _reader(self, images: int | None) -> Any:
        batches = self.inputs if images is None else [tuple(tensor[:images] for tensor in self.inputs[0])]
        feeds = (
            {name: tensor.numpy() for name, tensor in zip(self._names, part, strict=True)}
            for batch in batches
            for part, _ in _of_size(batch, self._size)
        )

        class Reader(self._tools.CalibrationDataReader):  # type: ignore[misc, name-defined]
            def get_next(self) -> dict[str, Any] | None:
                return next(feeds, None)

        return Reader()

    def open(self, data: bytes) -> Run:
        """Return a callable that runs a file, in batches of the size that it was exported for."""
        runtime = require("onnxruntime", "onnxruntime", "to run ONNX files", extra="export")
        options = runtime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, torch.get_num_threads()
        with _quantization_errors():
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names, size, like = self._names, self._size, self._outputs

        def run(*inputs: Tensor) -> Any:
            parts = []
            for part, rows in _of_size(tuple(tensor.detach().cpu() for tensor in inputs), size):
                feed = {name: tensor.numpy() for name, tensor in zip(names, part, strict=True)}
                parts.append([torch.from_numpy(output)[:rows] for output in session.run(None, feed)])
            tensors = iter([torch.cat(list(outputs)) for outputs in zip(*parts, strict=True)])
            leaves, structure = pytree.tree_flatten(like)
            return pytree.tree_unflatten([next(tensors) if isinstance(x, Tensor) else x for x in leaves], structure)

        return run


def _weighted_nodes(graph: Any) -> dict[str, str]:
    """Map layers, called by their weights as in the network, to the names of their nodes."""
    weights = {tensor.name for tensor in graph.initializer}
    found: dict[str, str] = {}
    for node in graph.node:
        named = [name for name in node.input[1:2] if name in weights]
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") and named:
            layer = named[0].removesuffix(".weight")
            found[layer if layer not in found else node.name] = node.name
    return found


def _of_size(inputs: tuple[Tensor, ...], size: int | None) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """Yield parts of a batch with the number of valid rows; the last part is padded to the size."""
    count = len(inputs[0])
    for start in range(0, count, size or count):
        part = tuple(tensor[start : start + (size or count)] for tensor in inputs)
        rows = len(part[0])
        if size is not None and rows < size:
            part = tuple(tensor[[*range(rows), *[rows - 1] * (size - rows)]] for tensor in part)
        yield part, rows


@contextmanager
def _quantization_errors() -> Iterator[None]:
    """Silence ONNX Runtime's tools, and raise what fails in them as an ExportError."""
    try:
        with quiet():
            yield
    except (Depl0Error, OSError, MemoryError):
        raise
    except Exception as error:  # anything that the tools raise
        raise ExportError(
            f"ONNX Runtime cannot quantize the network: {type(error).__name__}: {first_line(error)}",
            hint="export it in float; the original error is chained to this one.",
        ) from error


# -- accuracy ----------------------------------------------------------------------------------------------------------


def _within(quantizer: _Quantizer, score: Score | None, max_drop: float, metric: Metric, note: Note) -> Quantized:
    """Quantize all layers; if that loses too much, leave the most sensitive ones in float, or raise.

    The number of layers in float is doubled until the loss is within ``max_drop``, up to half of the layers.
    """
    data = quantizer.encode()
    run = quantizer.open(data)
    if score is None:
        return Quantized(data, run, None, None, weight_bits=quantizer.weight_bits)
    before = score(quantizer.open(quantizer.data))
    best = found = Quantized(data, run, before, score(run), weight_bits=quantizer.weight_bits)
    order: list[str] = []
    number = 1
    while not _drop(found, metric) <= max_drop:
        best = min(best, found, key=lambda each: _drop(each, metric))
        if not order:
            note(f"all in int8: {_scores(found, metric)}; looking for the most sensitive layers")
            order = sensitive_layers(quantizer)
        if number > len(order) * MAX_FLOAT_FRACTION:
            layers = f" with {len(best.in_float)} layers left in float ({', '.join(best.in_float)})"
            raise ExportError(
                f"int8 loses too much: {_scores(best, metric)} at best{layers if best.in_float else ''}; "
                f"max_drop allows {metric.number(max_drop)}. Nothing is written.",
                hint="allow more with max_drop, calibrate with more images, or export in float.",
            )
        data = quantizer.encode(order[:number])
        run = quantizer.open(data)
        found = dataclasses.replace(found, data=data, run=run, after=score(run), in_float=tuple(order[:number]))
        note(f"{number} of {len(order)} layers in float: {_scores(found, metric)}")
        number *= 2
    return found


def sensitive_layers(quantizer: _Quantizer) -> list[str]:
    """Order layers by the error of the outputs when this layer alone is in int8, the largest first."""
    some = tuple(tensor[:SENSITIVITY_IMAGES] for tensor in quantizer.inputs[0])
    expected = _flat(quantizer.open(quantizer.data)(*some))
    errors = {}
    for layer in quantizer.layers:
        others = [other for other in quantizer.layers if other != layer]
        found = _flat(quantizer.open(quantizer.encode(others, SENSITIVITY_IMAGES))(*some))
        errors[layer] = float((found - expected).square().mean())
    return sorted(errors, key=lambda layer: -errors[layer])


def _flat(outputs: object) -> Tensor:
    tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def _drop(found: Quantized, metric: Metric) -> float:
    assert found.before is not None and found.after is not None
    drop = found.before - found.after if metric.higher_is_better else found.after - found.before
    return drop if drop == drop else float("inf")


def _scores(found: Quantized, metric: Metric) -> str:
    assert found.before is not None and found.after is not None
    return f"{metric.label} {metric.show(found.before)} in float, {metric.show(found.after)} in int8"


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
    if isinstance(batches, Tensor):
        batches = [batches]
    if not isinstance(batches, Iterable) or isinstance(batches, (dict, str)):
        raise InputError(
            f"calibration must give batches of inputs, got {type(batches).__name__} instead.",
            hint="pass a list of tensors, each (batch, channels, height, width).",
        )
    found, remaining = [], images
    for number, batch in enumerate(batches):
        tensors = _batch_tensors(number, batch)
        if len(tensors[0]) > 0:
            found.append(tuple(tensor[:remaining].detach().cpu() for tensor in tensors))
            remaining -= len(tensors[0])
        if remaining <= 0:
            break
    if not found:
        raise InputError(
            "int8 needs calibration images, and there are none.",
            hint="pass some hundred training images, normalised as in training.",
        )
    return found


def _batch_tensors(number: int, batch: Any) -> tuple[Tensor, ...]:
    tensors = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.dim() > 0 for tensor in tensors):
        raise InputError(
            f"batch {number} of the calibration images must be a tensor or a tuple of tensors, got "
            f"{type(batch).__name__} instead.",
            hint="leave labels out: a batch holds the arguments of the network.",
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise InputError(f"batch {number} of the calibration images holds values that are not finite.")
    return tensors
