"""``depl0 latency``: how fast a network is here, dense and compact side by side."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from depl0.cli.latency_subject import Sizes, Subject, file_subject, model_subject, run_subject
from depl0.cli.latency_table import latency_table
from depl0.errors import InputError
from depl0.latency.backends import BACKENDS
from depl0.latency.cache import machine
from depl0.latency.compare import Omitted, Timing, compare


def latency_command(
    subject: Annotated[
        str,
        typer.Argument(
            help="A model (resnet56, torchvision:…, file.py:make), a run's or compact network's folder, .onnx or .pt2."
        ),
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes, e.g. 1,32.")] = "1",
    threads: Annotated[int, typer.Option(help="Threads; 0: as torch is set.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    backend: Annotated[str, typer.Option(help=f"Some of {','.join(BACKENDS)}.")] = ",".join(BACKENDS),
    budget: Annotated[
        float | None, typer.Option(help="A model only: cut it, untrained, to this share, to know its speed beforehand.")
    ] = None,
    of: Annotated[str, typer.Option(help="What the budget counts: macs, params or latency.")] = "macs",
    round_to: Annotated[str, typer.Option(help="With --budget: multiples of channels to compare, e.g. 1,8,16.")] = "1",
    groups: Annotated[str, typer.Option(help="With --budget: all or inner.")] = "all",
    built_small: Annotated[
        bool, typer.Option("--built-small", help="Compare with a network built small from the start, too.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="What built the dense network; a run knows its own.")] = None,
    image_size: Annotated[int, typer.Option(help="Height and width of the images.")] = 0,
    channels: Annotated[int, typer.Option(help="Channels of the images.")] = 3,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    seconds: Annotated[float, typer.Option(help="Most time for each comparison.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a network in PyTorch, torch.compile and ONNX Runtime; with its dense form, if it is a compact one."""
    batches, backends = _numbers("--batch", batch), _backends(backend)
    place = _device(device)
    with _threads(threads):
        sizes = Sizes(image_size, channels, classes)
        path = Path(subject)
        if path.suffix in (".onnx", ".pt2"):
            timings, omitted = file_subject(path, batches, place, seconds)
            networks: dict[str, Any] = {}
        else:
            if path.is_dir():
                if budget is not None:
                    raise InputError("--budget is for a model; a run has its own.", hint="leave --budget out.")
                found = run_subject(path, model, sizes, built_small)
            else:
                found = model_subject(subject, sizes, budget, of, _numbers("--round-to", round_to), groups, built_small)
            networks, timings, omitted = _compare(found, backends, batches, place, seconds)
        result = {
            "subject": subject,
            **machine(place),
            "clock": "processor time" if place.type == "cpu" and torch.get_num_threads() == 1 else "wall clock",
            "networks": networks,
            "timings": [_entry(timing) for timing in timings],
            "skipped": [dataclasses.asdict(entry) for entry in omitted],
        }
    typer.echo(json.dumps(result, indent=2) if as_json else latency_table(result))


def _compare(
    subject: Subject, backends: list[str], batches: list[int], device: torch.device, seconds: float
) -> tuple[dict[str, Any], list[Timing], list[Omitted]]:
    networks = {name: network.to(device) for name, network in subject.networks.items()}
    timings, omitted = compare(
        networks,
        backends,
        batches,
        lambda size: torch.randn(size, *subject.image_shape, generator=torch.Generator().manual_seed(0)).to(device),
        _to_onnx,
        torch.get_num_threads(),
        seconds=seconds,
    )
    return subject.costs(), timings, omitted


def _to_onnx(network: nn.Module, inputs: Tensor) -> bytes:
    from depl0.export.onnx import export_onnx  # torch.onnx is slow to import

    print(f"exporting for ONNX Runtime, batch {len(inputs)} …", file=sys.stderr)
    with torch.inference_mode(False):  # recording a graph needs ordinary tensors
        return export_onnx(network, inputs.clone())


def _entry(timing: Timing) -> dict[str, Any]:
    return {
        "backend": timing.backend,
        "batch": timing.batch,
        "network": timing.network,
        "median_ms": 1000 * timing.median,
        "spread_ms": 1000 * timing.spread,
        "best_ms": 1000 * timing.best,
        "rounds": timing.rounds,
        "speedup": timing.speedup,
        "interval": None if timing.interval is None else [timing.interval.low, timing.interval.high],
    }


def _numbers(option: str, words: str) -> list[int]:
    try:
        numbers = [int(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if not numbers or any(number < 1 for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(f"{option} takes whole numbers such as 1,32, got {words!r} instead.")
    return numbers


def _backends(words: str) -> list[str]:
    names = words.split(",")
    for name in names:
        if name not in BACKENDS:
            raise InputError(f"--backend must be some of {', '.join(BACKENDS)}, got {name!r} instead.")
    return names


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {name!r} instead.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device is cuda, but torch sees no CUDA device.", hint="use --device cpu.")
    return device


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
