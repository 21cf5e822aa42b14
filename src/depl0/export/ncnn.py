"""Networks for ncnn, which runs on phones: translated from ONNX by pnnx to a ``.param`` and a ``.bin`` file."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar, final

from depl0._util.optional import require
from depl0.errors import ExportError, InputError
from depl0.export.onnx import Onnx
from depl0.export.targets import Request, Target, reader_program, register

SECONDS = 600.0


@final
@register
class Ncnn(Target):
    """The graph and, beside it, its weights in float32. The batch size is 1 and not written down."""

    name: ClassVar[str] = "ncnn"
    suffix: ClassVar[str] = ".ncnn.param"
    reader: ClassVar[str] = reader_program(
        """
sys.modules["torch"] = None
import ncnn, numpy
net = ncnn.Net()
net.opt.num_threads = threads
net.opt.use_vulkan_compute = net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
if net.load_param(file) or net.load_model(file.removesuffix(".param") + ".bin"):
    sys.exit("ncnn has no layer for an operator of the network")
def network(*arrays):
    extractor = net.create_extractor()
    for place, array in enumerate(arrays):
        extractor.input(f"in{place}", ncnn.Mat(numpy.ascontiguousarray(array[0])))
    return [numpy.array(extractor.extract(name)[1])[None] for name in sorted(net.output_names())]
"""
    )

    def check_installed(self) -> None:
        """Look for ncnn, pnnx, and what writes ONNX."""
        for package in ("pnnx", "ncnn"):
            require(package, package, "for ncnn files", extra="ncnn")
        Onnx().check_installed()

    def encode(self, request: Request) -> dict[str, bytes]:
        """Write ONNX, and have pnnx translate it."""
        if request.dynamic_batch or any(len(tensor) != 1 for tensor in request.example):
            raise InputError("ncnn files are for batches of 1.", hint="leave dynamic_batch out.")
        pnnx, data = require("pnnx", "pnnx", "for ncnn files", extra="ncnn"), Onnx().encode(request)
        shapes = ",".join(f"[{','.join(map(str, tensor.shape))}]f32" for tensor in request.example)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(data)
            command = [pnnx.EXEC_PATH, "model.onnx", f"inputshape={shapes}", "fp16=0"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
            files = {suffix: folder / f"model{suffix}" for suffix in (self.suffix, ".ncnn.bin")}
            if done.returncode != 0 or not all(file.is_file() for file in files.values()):
                said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
                raise ExportError(f"pnnx cannot translate the network: {' '.join(said)}", hint="export it as onnx.")
            return {suffix: file.read_bytes() for suffix, file in files.items()}
