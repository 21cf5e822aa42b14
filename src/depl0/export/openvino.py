"""Networks for OpenVINO, translated from ONNX: an ``.xml`` file with the graph and a ``.bin`` file with the weights."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any, ClassVar, final

from depl0._util.optional import require
from depl0.analysis.recording import quiet
from depl0.errors import ExportError
from depl0.export.onnx import Onnx
from depl0.export.targets import Request, Target, reader_program, register
from depl0.host.network import first_line


@final
@register
class OpenVino(Target):
    """The graph and, beside it, its weights in the network's own precision."""

    name: ClassVar[str] = "openvino"
    suffix: ClassVar[str] = ".xml"
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

    def check_installed(self) -> None:
        """Check that OpenVINO and the packages that write ONNX are installed."""
        _openvino()
        Onnx().check_installed()

    def encode(self, request: Request) -> dict[str, bytes]:
        """Write ONNX, and have OpenVINO translate it."""
        openvino, data = _openvino(), Onnx().encode(request)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"model{self.suffix}"
            try:
                with quiet():
                    model = openvino.convert_model(io.BytesIO(data))
                    for key, value in request.metadata.items():
                        model.set_rt_info(value, ["depl0", key.removeprefix("depl0.")])
                    openvino.save_model(model, file, compress_to_fp16=False)
            except Exception as error:  # OpenVINO raises various exceptions for missing operators
                raise ExportError(
                    f"OpenVINO cannot translate the network: {first_line(error)}", hint="export it as onnx."
                ) from error
            return {part.suffix: part.read_bytes() for part in Path(folder).iterdir()}


def _openvino() -> Any:
    return require("openvino", "openvino", "for OpenVINO files", extra="openvino")
