"""Formats of other runtimes: OpenVINO, translated from ONNX, and ExecuTorch, PyTorch's runtime for phones."""

from __future__ import annotations

import io
import tempfile
from importlib import import_module
from pathlib import Path
from typing import ClassVar, final

from depl0.export.onnx import Onnx
from depl0.export.targets import CALL_TORCH, Request, Target, reader_program, register, tool_errors


@final
@register
class OpenVino(Target):
    """An ``.xml`` file with the graph and a ``.bin`` file with the weights, in the network's own precision."""

    name: ClassVar[str] = "openvino"
    suffix: ClassVar[str] = ".xml"
    packages: ClassVar[tuple[str, ...]] = ("openvino", *Onnx.packages)
    extra: ClassVar[str] = "openvino"
    reader: ClassVar[str] = reader_program(
        """
sys.modules["torch"] = None
import openvino
settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
compiled = openvino.Core().compile_model(file, "CPU", settings)
def network(*arrays):
    found = compiled(list(arrays))
    return [found[place] for place in range(len(compiled.outputs))]
"""
    )

    def encode(self, request: Request) -> dict[str, bytes]:
        """Write ONNX, and have OpenVINO translate it."""
        openvino, data = import_module("openvino"), Onnx().encode(request)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"model{self.suffix}"
            with tool_errors("OpenVINO cannot translate the network", "export it as onnx"):
                model = openvino.convert_model(io.BytesIO(data))
                for key, value in request.metadata.items():
                    model.set_rt_info(value, ["depl0", key.removeprefix("depl0.")])
                openvino.save_model(model, file, compress_to_fp16=False)
            return {part.suffix: part.read_bytes() for part in Path(folder).iterdir()}


@final
@register
class ExecuTorch(Target):
    """A ``.pte`` file: a program with its weights, for XNNPACK on the CPU."""

    name: ClassVar[str] = "executorch"
    suffix: ClassVar[str] = ".pte"
    packages: ClassVar[tuple[str, ...]] = ("executorch",)
    extra: ClassVar[str] = "executorch"
    reader: ClassVar[str] = reader_program(
        """
from executorch.extension.pybindings import portable_lib
from executorch.runtime import Runtime
portable_lib._unsafe_reset_threadpool(threads)
method = Runtime.get().load_program(file).load_method("forward")
module = lambda *tensors: method.execute(tensors)
"""
        + CALL_TORCH
    )

    def encode(self, request: Request) -> bytes:
        """Record the network and lower it to XNNPACK, which folds batch norms."""
        program = request.record()
        with tool_errors("ExecuTorch cannot translate the network", "export it as pt2"):
            exir = import_module("executorch.exir")
            xnnpack = import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
            lowered = exir.to_edge_transform_and_lower(program, partitioner=[xnnpack.XnnpackPartitioner()])
            return bytes(lowered.to_executorch().buffer)
