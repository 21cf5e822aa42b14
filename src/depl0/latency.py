"""Run time of networks on this machine, in seconds, measured side by side on one or several backends.

On the CPU with one thread, CPU time is measured, so that other programs are not counted. With several threads, and on
other devices, wall-clock time is measured.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.optional import require
from depl0.errors import NotInstalledError
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode, first_line

Call = Callable[[], object]


@dataclass(frozen=True)
class Latency:
    """Seconds of one forward pass: the median, half of the interquartile range, and the mean of the fastest fifth."""

    median: float
    spread: float
    best: float


@dataclass(frozen=True)
class Speedup:
    """Speed-up of one network over another, with 95 % confidence between ``low`` and ``high``."""

    ratio: float
    low: float
    high: float

    @property
    def is_measurable(self) -> bool:
        """Return True if the difference is large enough to be reproducible with the same two networks."""
        return self.low > 1 + SAME or self.high < 1 - SAME

    def in_words(self) -> str:
        """Return the speed-up and its interval as text.

        >>> Speedup(1.5, 1.4, 1.6).in_words(), Speedup(1.03, 0.9, 1.1).in_words()
        ('1.50x as fast (1.40 to 1.60)', 'no measurable difference (0.90 to 1.10)')
        """
        said = f"{self.ratio:.2f}x as fast" if self.is_measurable else "no measurable difference"
        return f"{said} ({self.low:.2f} to {self.high:.2f})"


RESAMPLED = 1000
"""Number of bootstrap samples for the interval of a speed-up."""
SAME = 0.02
"""Relative difference between two copies of one network, caused by their addresses in memory."""


def time_networks(
    models: Mapping[str, nn.Module], inputs: Sequence[Tensor] | ExampleInputs, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Return the seconds of every round, for each network, on the same input.

    They are interleaved, so that noise affects all of them equally. Stops after ``repeats`` rounds, or after
    ``seconds`` if at least five rounds are done. The networks' modes are kept.
    """
    example = inputs if isinstance(inputs, ExampleInputs) else ExampleInputs(tuple(inputs), {})
    device = next(leaf.device for leaf in example.leaves() if isinstance(leaf, Tensor))
    calls = {name: eager(model, example) for name, model in models.items()}
    with evaluation_mode(*models.values()), torch.inference_mode():
        return interleave(calls, device, repeats, seconds)


def interleave(
    calls: Mapping[str, Callable[[], object]], device: torch.device, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Run all calls in turn, one warm-up and then several rounds; return the seconds of every round.

    Their order changes from round to round, because a call after a large network starts with cold caches.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # warm-up
    clock, start = clock_for(device), time.perf_counter()
    order, rng = list(calls), random.Random(0)
    for round_number in range(max(repeats, 2)):
        rng.shuffle(order)
        for name in order:
            times[name].append(_seconds(calls[name], device, clock))
        if round_number >= 4 and time.perf_counter() - start > seconds:
            break
    return times


def summarise(values: Sequence[float]) -> Latency:
    """Return median, spread and the mean of the fastest fifth."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Latency(middle, (high - low) / 2, fastest_fifth_mean(values))


def fastest_fifth_mean(values: Sequence[float]) -> float:
    """Return the time without disturbances: the mean of the fastest fifth.

    On a busy machine it is more reproducible than the median; on an idle one both are equal.

    >>> fastest_fifth_mean([5.0, 1.0, 9.0, 7.0, 3.0, 2.0, 8.0, 6.0, 4.0, 10.0])
    1.5
    """
    return statistics.mean(sorted(values)[: max(1, len(values) // 5)])


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return the ratio of two run times, each the mean of its fastest fifth."""
    return fastest_fifth_mean(numerator) / fastest_fifth_mean(denominator)


def speedup(reference: Sequence[float], seconds: Sequence[float]) -> Speedup:
    """Return the speed-up of a network, from rounds in which both were timed.

    The ratio is that of the two medians, the milliseconds that tables print. Its interval is that of the same ratio
    over resampled rounds (the percentile bootstrap, always with the same samples), widened if necessary to include the
    ratio. Both times of a round stay together, because a disturbance may have affected both.

    >>> speedup([2.0, 2.2, 2.0, 9.0, 2.0, 2.0, 2.0, 2.0], [1.0] * 8)
    Speedup(ratio=2.0, low=2.0, high=2.2)
    """
    pairs = torch.tensor([reference, seconds], dtype=torch.float64)  # (2, rounds)
    rounds = pairs.shape[1]
    rng = torch.Generator().manual_seed(0)
    drawn = pairs[:, torch.randint(rounds, (RESAMPLED, rounds), generator=rng)]  # (2, resampled, rounds)
    before, after = torch.quantile(torch.cat([pairs[:, None], drawn], dim=1), 0.5, dim=-1)
    found = before / after
    ratio = float(found[0])
    low, high = torch.quantile(found[1:], torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Speedup(ratio, min(low, ratio), max(high, ratio))


def clock_for(device: torch.device) -> Callable[[], float]:
    """Return the clock for torch's number of threads: CPU time if it is available."""
    return time.thread_time if torch.get_num_threads() == 1 and device.type == "cpu" else time.perf_counter


def _seconds(call: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = clock()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


# -- backends ----------------------------------------------------------------------------------------------------------


class Skipped(Exception):
    """A backend cannot be used here; the message gives the reason."""


def eager(model: Callable[..., object], example: ExampleInputs) -> Call:
    """Call the network in eager mode."""
    return lambda: model(*example.args, **example.kwargs)


def compiled(model: nn.Module, example: ExampleInputs) -> Call:
    """Call the network through torch.compile, compiled for exactly these inputs."""
    torch.compiler.reset()
    call = eager(torch.compile(model, dynamic=False), example)
    try:
        call()
    except Exception as error:  # any failure of the compiler or of its code
        raise Skipped(f"torch.compile failed: {type(error).__name__}: {first_line(error)}") from error
    return call


def onnx_runtime(model: nn.Module, example: ExampleInputs) -> Call:
    """Run the network, exported, in ONNX Runtime, with torch's number of threads."""
    if example.tensors()[0].device.type != "cpu":
        raise Skipped("ONNX Runtime is timed on the CPU only.")
    try:
        require("onnxruntime", "onnxruntime", "to time networks in it", extra="export")  # the export is slow
        with evaluation_mode(model), torch.inference_mode(False), torch.no_grad():  # recording needs ordinary tensors
            example = example.map_tensors(Tensor.clone)
            program = torch.onnx.export(model, example.args, kwargs=example.kwargs, dynamo=True, verbose=False)
        assert program is not None
        return session_call(program.model_proto.SerializeToString(), example.tensors(), torch.get_num_threads())
    except NotInstalledError as error:
        raise Skipped(f"{error.message} {error.hint}") from error
    except Exception as error:  # any failure of the exporter
        raise Skipped(f"the export failed with {type(error).__name__}: {first_line(error)}") from error


BACKENDS: Mapping[str, Callable[[nn.Module, ExampleInputs], Call]] = MappingProxyType(
    {"eager": eager, "compile": compiled, "onnxruntime": onnx_runtime}
)


def open_session(file: bytes, threads: int) -> Any:
    """Open an ONNX file on the CPU with this number of threads; spinning is off, so that idle threads use no time."""
    runtime = require("onnxruntime", "onnxruntime", "to run ONNX files", extra="export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    return runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def session_call(file: bytes, inputs: Sequence[Tensor], threads: int) -> Call:
    """Return a function that runs an ONNX file on these inputs."""
    session = open_session(file, threads)
    feed = {entry.name: t.numpy() for entry, t in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


# -- comparison --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing(Latency):
    """One network on one backend with one batch size."""

    backend: str
    batch: int
    network: str
    rounds: int
    speedup: Speedup | None
    """Speed-up over the first network, with its interval; None for the first network itself."""


def compare(
    networks: Mapping[str, nn.Module],
    backends: Sequence[str],
    batches: Sequence[int],
    make_inputs: Callable[[int], Tensor],
    *,
    repeats: int = 200,
    seconds: float = 10.0,
) -> tuple[list[Timing], list[dict[str, Any]]]:
    """Time all networks on each backend and batch size, interleaved; the first network is the reference.

    The second list holds backend, batch and reason of the measurements that were not possible.
    """
    timings: list[Timing] = []
    omitted: list[dict[str, Any]] = []
    with evaluation_mode(*networks.values()), torch.inference_mode():
        for batch in batches:
            inputs = make_inputs(batch)
            example = ExampleInputs((inputs,), {})
            for backend in backends:
                try:
                    calls = {name: BACKENDS[backend](model, example) for name, model in networks.items()}
                except Skipped as skipped:
                    omitted.append({"backend": backend, "batch": batch, "reason": str(skipped)})
                    continue
                times = interleave(calls, inputs.device, repeats, seconds)
                first = next(iter(times))
                for name, values in times.items():
                    faster = None if name == first else speedup(times[first], values)
                    found = asdict(summarise(values))
                    timings.append(
                        Timing(**found, backend=backend, batch=batch, network=name, rounds=len(values), speedup=faster)
                    )
    return timings, omitted


# -- the machine -------------------------------------------------------------------------------------------------------


def machine(device: torch.device) -> dict[str, Any]:
    """Return the environment of a measurement: device, threads, and the version of torch."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()
    return {"device": f"{device.type} {name}", "threads": torch.get_num_threads(), "torch": torch.__version__}


def processor_name() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
