"""What can run a network: PyTorch as it is, torch.compile, ONNX Runtime. Each gives a call that can be timed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[[], object]
ToOnnx = Callable[[nn.Module, Tensor], bytes]
"""writes a network as an ONNX file; given from above, where export lives"""


class Skipped(Exception):
    """A backend cannot be used here; the text says why."""


def eager(model: nn.Module, inputs: Tensor, to_onnx: ToOnnx, threads: int) -> Call:
    """Call the network as it is."""
    return lambda: model(inputs)


def compiled(model: nn.Module, inputs: Tensor, to_onnx: ToOnnx, threads: int) -> Call:
    """Call the network through torch.compile, compiled for exactly these inputs."""
    if inputs.device.type == "cpu" and not _compiler():
        raise Skipped("torch.compile needs a C++ compiler, and none was found (set CXX, or install g++).")
    torch.compiler.reset()
    fast: Any = torch.compile(model, dynamic=False)
    try:
        fast(inputs)
    except Exception as error:  # whatever the compiler or its code cannot do
        raise Skipped(f"torch.compile failed: {_first_line(error)}") from error
    return lambda: fast(inputs)


def onnx_runtime(model: nn.Module, inputs: Tensor, to_onnx: ToOnnx, threads: int) -> Call:
    """Run the network, exported, in ONNX Runtime."""
    require_runtime(inputs.device)
    return session_call(to_onnx(model, inputs), inputs, threads)


BACKENDS: Mapping[str, Callable[[nn.Module, Tensor, ToOnnx, int], Call]] = MappingProxyType(
    {"eager": eager, "compile": compiled, "onnxruntime": onnx_runtime}
)


def require_runtime(device: torch.device) -> Any:
    """Return the module onnxruntime, or say why it cannot be used."""
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        raise Skipped("onnxruntime is not installed (pip install 'depl0[export]').") from error
    if provider(device) not in runtime.get_available_providers():
        raise Skipped(f"the installed onnxruntime has no {provider(device)} (pip install onnxruntime-gpu).")
    return runtime


def provider(device: torch.device) -> str:
    """Return what ONNX Runtime calls a device."""
    return "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"


def open_session(file: bytes | Path, device: torch.device, threads: int) -> Any:
    """Open an ONNX file with so many threads; nothing spins while it waits, so that one thread is one thread."""
    runtime = require_runtime(device)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    source = file if isinstance(file, bytes) else str(file)
    return runtime.InferenceSession(source, options, providers=[provider(device)])


def session_call(file: bytes | Path, inputs: Tensor, threads: int) -> Call:
    """Return a call of an ONNX file on these inputs."""
    session = open_session(file, inputs.device, threads)
    feed = {session.get_inputs()[0].name: inputs.cpu().numpy()}
    return lambda: session.run(None, feed)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++", "c++", "cl"))), None)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
