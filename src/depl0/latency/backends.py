"""Time networks side by side on several backends: eager PyTorch, torch.compile, ONNX Runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.optional import install_command
from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode
from depl0.latency.measure import Speedup, interleave, speedup, summarise

Call = Callable[[], object]
ToOnnx = Callable[[nn.Module, Tensor], bytes]
"""Writes a network as an ONNX file; injected by the caller, because export is a higher layer."""


class Skipped(Exception):
    """A backend cannot be used here; the message gives the reason."""


def eager(model: nn.Module, inputs: Tensor, to_onnx: ToOnnx, threads: int) -> Call:
    """Call the network in eager mode."""
    return lambda: model(inputs)


def compiled(model: nn.Module, inputs: Tensor, to_onnx: ToOnnx, threads: int) -> Call:
    """Call the network through torch.compile, compiled for exactly these inputs."""
    if inputs.device.type == "cpu" and not _compiler():
        raise Skipped("torch.compile needs a C++ compiler, and none was found (set CXX, or install g++).")
    torch.compiler.reset()
    fast: Any = torch.compile(model, dynamic=False)
    try:
        fast(inputs)
    except Exception as error:  # any failure of the compiler or of its code
        raise Skipped(f"torch.compile failed: {_first_line(error)}") from error
    return lambda: fast(inputs)


def onnx_runtime(model: nn.Module, inputs: Tensor, to_onnx: ToOnnx, threads: int) -> Call:
    """Run the network, exported, in ONNX Runtime."""
    require_runtime(inputs.device)  # before the export, which is slow
    return session_call(to_onnx(model, inputs), inputs, threads)


BACKENDS: Mapping[str, Callable[[nn.Module, Tensor, ToOnnx, int], Call]] = MappingProxyType(
    {"eager": eager, "compile": compiled, "onnxruntime": onnx_runtime}
)


def require_runtime(device: torch.device) -> Any:
    """Return the module onnxruntime, or raise an error with the reason why it cannot be used."""
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        raise Skipped(f"onnxruntime is not installed ({install_command('export')}).") from error
    if provider(device) not in runtime.get_available_providers():
        raise Skipped(f"the installed onnxruntime has no {provider(device)} (pip install onnxruntime-gpu).")
    return runtime


def provider(device: torch.device) -> str:
    """Return the name of ONNX Runtime's execution provider for a device."""
    return "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"


def open_session(file: bytes, device: torch.device, threads: int) -> Any:
    """Open an ONNX file with this number of threads; spinning is off, so that idle threads use no CPU time."""
    runtime = require_runtime(device)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return runtime.InferenceSession(file, options, providers=[provider(device)])


def session_call(file: bytes, inputs: Tensor, threads: int) -> Call:
    """Return a function that runs an ONNX file on these inputs."""
    session = open_session(file, inputs.device, threads)
    feed = {session.get_inputs()[0].name: inputs.cpu().numpy()}
    return lambda: session.run(None, feed)


def onnx_call(network: nn.Module, example: ExampleInputs, device: torch.device) -> Call:
    """Return a function that runs the network in ONNX Runtime, with torch's number of threads.

    Raises:
        InputError: ONNX Runtime is not installed, or the network cannot be exported.
    """
    try:
        require_runtime(device)
        with evaluation_mode(network), torch.no_grad():
            program = torch.onnx.export(network, example.args, kwargs=example.kwargs, dynamo=True, verbose=False)
        assert program is not None
        session = open_session(program.model_proto.SerializeToString(), device, torch.get_num_threads())
    except Skipped as error:
        raise InputError(f"latency cannot be measured in ONNX Runtime: {error}") from error
    except Exception as error:  # any failure of the exporter
        raise InputError(
            f"latency cannot be measured in ONNX Runtime: the export failed with {_first_line(error)}",
            hint="use runtime='pytorch', or a budget of MACs.",
        ) from error
    tensors = [leaf for leaf in example.leaves() if isinstance(leaf, Tensor)]
    feed = {entry.name: leaf.cpu().numpy() for entry, leaf in zip(session.get_inputs(), tensors, strict=True)}
    return lambda: session.run(None, feed)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++", "c++", "cl"))), None)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


# -- comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """One network on one backend with one batch size."""

    backend: str
    batch: int
    network: str
    median: float
    spread: float
    """Half of the interquartile range of the rounds."""
    best: float
    """Time without disturbances: the mean of the fastest fifth of the rounds."""
    rounds: int
    speedup: Speedup | None
    """Speed-up over the first network, with its interval; None for the first network itself."""


@dataclass(frozen=True)
class Omitted:
    """A measurement that was not possible, with the reason."""

    backend: str
    batch: int
    reason: str


def compare(
    networks: Mapping[str, nn.Module],
    backends: Sequence[str],
    batches: Sequence[int],
    make_inputs: Callable[[int], Tensor],
    to_onnx: ToOnnx,
    threads: int,
    *,
    repeats: int = 200,
    seconds: float = 10.0,
) -> tuple[list[Timing], list[Omitted]]:
    """Time all networks on each backend and batch size, interleaved; the first network is the reference."""
    timings: list[Timing] = []
    omitted: list[Omitted] = []
    with evaluation_mode(*networks.values()), torch.inference_mode():
        for batch in batches:
            inputs = make_inputs(batch)
            for backend in backends:
                try:
                    calls = _calls(networks, backend, inputs, to_onnx, threads)
                except Skipped as skipped:
                    omitted.append(Omitted(backend, batch, str(skipped)))
                    continue
                timings += time_calls(calls, backend, batch, inputs.device, repeats, seconds)
    return timings, omitted


def time_calls(
    calls: Mapping[str, Call], backend: str, batch: int, device: torch.device, repeats: int, seconds: float
) -> list[Timing]:
    """Time calls interleaved; the first is the reference."""
    times = interleave(calls, device, repeats, seconds)
    first = next(iter(times))
    timings = []
    for name, values in times.items():
        found = summarise(values)
        faster = None if name == first else speedup(times[first], values)
        timings.append(Timing(backend, batch, name, found.median, found.spread, found.best, len(values), faster))
    return timings


def _calls(
    networks: Mapping[str, nn.Module], backend: str, inputs: Tensor, to_onnx: ToOnnx, threads: int
) -> dict[str, Call]:
    return {name: BACKENDS[backend](model, inputs, to_onnx, threads) for name, model in networks.items()}
