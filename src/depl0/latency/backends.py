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
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode, first_line
from depl0.latency.measure import Speedup, interleave, speedup, summarise

Call = Callable[[], object]


class Skipped(Exception):
    """A backend cannot be used here; the message gives the reason."""


def eager(model: Callable[..., object], example: ExampleInputs) -> Call:
    """Call the network in eager mode."""
    return lambda: model(*example.args, **example.kwargs)


def compiled(model: nn.Module, example: ExampleInputs) -> Call:
    """Call the network through torch.compile, compiled for exactly these inputs."""
    if _device(example).type == "cpu" and not _compiler():
        raise Skipped("torch.compile needs a C++ compiler, and none was found (set CXX, or install g++).")
    torch.compiler.reset()
    call = eager(torch.compile(model, dynamic=False), example)
    try:
        call()
    except Exception as error:  # any failure of the compiler or of its code
        raise Skipped(f"torch.compile failed: {type(error).__name__}: {first_line(error)}") from error
    return call


def onnx_runtime(model: nn.Module, example: ExampleInputs) -> Call:
    """Run the network, exported, in ONNX Runtime, with torch's number of threads."""
    require_runtime(_device(example))  # before the export, which is slow
    try:
        with evaluation_mode(model), torch.inference_mode(False), torch.no_grad():  # recording needs ordinary tensors
            example = example.map_tensors(Tensor.clone)
            program = torch.onnx.export(model, example.args, kwargs=example.kwargs, dynamo=True, verbose=False)
        assert program is not None
        session = open_session(program.model_proto.SerializeToString(), _device(example), torch.get_num_threads())
    except Exception as error:  # any failure of the exporter
        raise Skipped(f"the export failed with {type(error).__name__}: {first_line(error)}") from error
    feed = {entry.name: t.cpu().numpy() for entry, t in zip(session.get_inputs(), example.tensors(), strict=True)}
    return lambda: session.run(None, feed)


BACKENDS: Mapping[str, Callable[[nn.Module, ExampleInputs], Call]] = MappingProxyType(
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


def _device(example: ExampleInputs) -> torch.device:
    return example.tensors()[0].device


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++", "c++", "cl"))), None)


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
            example = ExampleInputs((inputs,), {})
            for backend in backends:
                try:
                    calls = {name: BACKENDS[backend](model, example) for name, model in networks.items()}
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
