"""Static quantisation by ONNX Runtime's own quantiser: QDQ, int8 weights per channel, uint8 activations.

ONNX Runtime is faster on x86 with uint8 activations than with int8 ones: a ResNet-20 took 0.7 instead of 1.5 ms on one.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from depl0._util.optional import require
from depl0.errors import ExportError
from depl0.export.int8.quantizer import Int8File, Quantizer, Run, explained, of_size, unflatten
from depl0.export.onnx import Onnx

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_TOOL = ("ONNX Runtime", "export it in float")
"""who quantises, and what to do where it cannot"""


@final
class OnnxQuantizer(Quantizer):
    """A float ONNX file and the ranges of its activations.

    Args:
        data: the float file, batch norms folded.
        inputs: calibration images.
        outputs: what the network returns, whose structure the file's outputs get.
        weight_bits: 8, or 7, with which no x86 processor saturates; None: what this processor needs.
    """

    def __init__(
        self, data: bytes, inputs: list[tuple[Tensor, ...]], outputs: Any, weight_bits: int | None = None
    ) -> None:
        self.weight_bits = bits_without_saturation() if weight_bits is None else weight_bits
        self._onnx = require("onnx", "onnx", "to write int8 files", extra="export")
        self._quantization = require("onnxruntime.quantization", "onnxruntime", "to quantise", extra="export")
        self._data, self._outputs = data, outputs
        with explained(*_TOOL):
            self._proto = self._onnx.shape_inference.infer_shapes(self._onnx.load_from_string(data))
            self._nodes = _weighted_nodes(self._proto.graph)
            self.layers = tuple(self._nodes)
            self._ranges = self._measured(inputs)
        if not self.layers:
            raise ExportError("the network has no convolution and no linear layer that could be written in int8.")

    def encode(self, in_float: Collection[str] = ()) -> bytes:
        """Return the int8 file."""
        kinds = self._quantization.QuantType
        proto = self._onnx.ModelProto()
        proto.CopyFrom(self._proto)
        with explained(*_TOOL):
            quantizer = require("onnxruntime.quantization.qdq_quantizer", "onnxruntime", "to quantise").QDQQuantizer(
                proto,
                per_channel=True,
                reduce_range=self.weight_bits < 8,
                weight_qType=kinds.QInt8,
                activation_qType=kinds.QUInt8,
                tensors_range=self._ranges,
                nodes_to_quantize=[],
                nodes_to_exclude=[self._nodes[layer] for layer in in_float],
                op_types_to_quantize=self._operators(),
                extra_options={},
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
            found = quantizer.model.model
            shorten(self._onnx, found)
            del found.metadata_props[:]
            return bytes(found.SerializeToString())

    def describe(self, data: bytes, metadata: Mapping[str, str]) -> bytes:
        """Write metadata into a file."""
        proto = self._onnx.load_from_string(data)
        for key, value in metadata.items():
            proto.metadata_props.add(key=key, value=value)
        return bytes(proto.SerializeToString())

    def in_float(self) -> Run:
        """Return the float file."""
        return self.open(self._data)

    def open(self, data: bytes) -> Run:
        """Return a call of a file, in batches of the size that it was exported for."""
        runtime = require("onnxruntime", "onnxruntime", "to run ONNX files", extra="export")
        options = runtime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, torch.get_num_threads()
        with explained(*_TOOL):
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        first = session.get_inputs()[0].shape[0]
        size = first if isinstance(first, int) else None

        def run(*inputs: Tensor) -> Any:
            parts = []
            for part, rows in of_size(tuple(tensor.detach().cpu() for tensor in inputs), size):
                feed = {name: tensor.numpy() for name, tensor in zip(names, part, strict=True)}
                parts.append([torch.from_numpy(output)[:rows] for output in session.run(None, feed)])
            return unflatten([torch.cat(list(outputs)) for outputs in zip(*parts, strict=True)], self._outputs)

        return run

    def _operators(self) -> list[str]:
        registry = require("onnxruntime.quantization.registry", "onnxruntime", "to quantise")
        return sorted({*registry.QLinearOpsRegistry, *registry.QDQRegistry})

    def _measured(self, inputs: list[tuple[Tensor, ...]]) -> Any:
        """Return the smallest and largest value of every tensor over the calibration images."""
        names = [value.name for value in self._proto.graph.input]
        size = self._proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value or None
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "float.onnx"
            file.write_bytes(self._proto.SerializeToString())
            calibrator = self._quantization.create_calibrator(
                file,
                self._operators(),
                augmented_model_path=str(Path(folder) / "augmented.onnx"),
                calibrate_method=self._quantization.CalibrationMethod.MinMax,
            )
            calibrator.collect_data(_reader(self._quantization, names, inputs, size))
            return calibrator.compute_data()


def _reader(quantization: Any, names: list[str], inputs: list[tuple[Tensor, ...]], size: int | None) -> Any:
    """Return the calibration images as ONNX Runtime asks for them, one batch after the other."""
    feeds = (
        {name: tensor.numpy() for name, tensor in zip(names, part, strict=True)}
        for batch in inputs
        for part, _ in of_size(batch, size)
    )

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(feeds, None)

    return Reader()


def _weighted_nodes(graph: Any) -> dict[str, str]:
    """Map layers to the names of their nodes: a layer is called by its weight, as in the network."""
    weights = {tensor.name for tensor in graph.initializer}
    found: dict[str, str] = {}
    for node in graph.node:
        named = [name for name in node.input[1:2] if name in weights]
        if node.op_type in _WEIGHTED and named:
            layer = named[0].removesuffix(".weight")
            found[layer if layer not in found else node.name] = node.name
    return found


@final
class Int8Onnx(Int8File):
    """An int8 ONNX file."""

    name: ClassVar[str] = Onnx.name
    suffix: ClassVar[str] = ".int8.onnx"
    reader: ClassVar[str] = Onnx.reader


# -- saturation --------------------------------------------------------------------------------------------------------

X86 = ("x86_64", "amd64")
VNNI = {"avx512_vnni", "avx_vnni"}
"""what Linux calls the instructions"""
CPUINFO = Path("/proc/cpuinfo")


def bits_without_saturation() -> int:
    """Return how many bits int8 weights may use here without saturation: 8, or 7 on x86 without VNNI.

    x86 processors multiply uint8 activations by int8 weights and add neighbouring products. With VNNI the sum has 32
    bits. Without it, it has 16, and 255·127 + 255·127 does not fit: outputs are silently wrong. With weights of 7 bits
    it fits.
    """
    if platform.machine().lower() not in X86:
        return 8
    return 8 if VNNI & _instructions() else 7


def _instructions() -> set[str]:
    """Return the instruction sets of the processor; nothing where the system does not tell."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


# -- small files -------------------------------------------------------------------------------------------------------


def shorten(onnx: Any, proto: Any) -> None:
    """Give intermediate tensors short names; leave out zero points that are zero and attributes at their default.

    In a small network they are a tenth of the file. Weights keep the names of their parameters.
    """
    graph = proto.graph
    _drop_zero_points(onnx, graph)
    _drop_defaults(onnx, graph)
    fixed = {value.name for value in (*graph.input, *graph.output)} | {""}
    names = _weight_names(graph)
    taken = fixed | set(names.values())
    number = 0
    for node in graph.node:
        for name in (*node.input, *node.output):
            if name in fixed or name in names:
                continue
            while (short := _digits(number)) in taken:
                number += 1
            names[name], number = short, number + 1
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.name = ""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    del graph.value_info[:]


def _weight_names(graph: Any) -> dict[str, str]:
    """Map the int8 values of a parameter to the parameter's own name."""
    suffix = "_quantized"
    return {
        tensor.name: tensor.name.removesuffix(suffix)
        for tensor in graph.initializer
        if tensor.name.endswith(f".weight{suffix}")
    }


def _drop_zero_points(onnx: Any, graph: Any) -> None:
    """Leave out the zero points of weights: without one, DequantizeLinear takes zero."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    zeros = {name for name, tensor in tensors.items() if tensor.dims and not onnx.numpy_helper.to_array(tensor).any()}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and len(node.input) == 3 and node.input[2] in zeros:
            del node.input[2]
    used = {name for node in graph.node for name in node.input}
    for name, tensor in tensors.items():
        if name not in used:
            graph.initializer.remove(tensor)


def _drop_defaults(onnx: Any, graph: Any) -> None:
    """Leave out attributes of convolutions that say what ONNX takes without them."""
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        for attribute in list(node.attribute):
            value = onnx.helper.get_attribute_value(attribute)
            if (attribute.name, value) in (("auto_pad", b"NOTSET"), ("group", 1)) or (
                attribute.name == "dilations" and set(value) == {1}
            ):
                node.attribute.remove(attribute)


def _digits(number: int) -> str:
    signs = "abcdefghijklmnopqrstuvwxyz"
    text = signs[number % 26]
    while number >= 26:
        number = number // 26 - 1
        text = signs[number % 26] + text
    return text
