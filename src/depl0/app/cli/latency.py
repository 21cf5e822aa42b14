"""``depl0 latency``: how fast a network is here, dense and compact side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from depl0.app.cli.options import JSON, choice, echo
from depl0.errors import InputError

BACKENDS = ("eager", "compile", "onnxruntime")


def latency_command(
    subject: Annotated[
        str,
        typer.Argument(
            help="A model (resnet56, torchvision:…, file.py:make), a run's or compact network's folder, .onnx or .pt2."
        ),
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes, e.g. 1,32.")] = "1",
    threads: Annotated[int, typer.Option(help="Threads; 0: torch's setting.", min=0, max=1024)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    backend: Annotated[str, typer.Option(help=f"Some of {','.join(BACKENDS)}.")] = ",".join(BACKENDS),
    budget: Annotated[
        float | None,
        typer.Option(help="Models only: prune it, untrained, to this share, to predict its speed."),
    ] = None,
    of: Annotated[str, choice("--of", ("macs", "params", "latency"), "Cost that the budget is a share of.")] = "macs",
    round_to: Annotated[str, typer.Option(help="With --budget: multiples of channels to compare, e.g. 1,8,16.")] = "1",
    groups: Annotated[str, typer.Option(help="With --budget: all or inner.")] = "all",
    built_small: Annotated[
        bool, typer.Option("--built-small", help="Also time a network built small from the start.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Dense-model factory (default: the run's own).")] = None,
    image_size: Annotated[int, typer.Option(help="Height and width of the images.", min=0)] = 0,
    channels: Annotated[int, typer.Option(help="Channels of the images.")] = 3,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    seconds: Annotated[float, typer.Option(help="Time limit per comparison (s).")] = 10.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time a network on this machine.

    It runs in PyTorch, torch.compile and ONNX Runtime, beside its original network if it is a pruned one.
    """
    from depl0.app.cli.latency_run import (
        Sizes,
        device_called,
        latency_table,
        measured,
        model_subject,
        run_subject,
        threads_set,
    )

    batches, backends = _numbers("--batch", batch), _backends(backend)
    place, path = device_called(device), Path(subject)
    with threads_set(threads):
        sizes = Sizes(image_size, channels, classes)
        if path.suffix in (".onnx", ".pt2"):
            found = None
        elif not path.is_dir():
            found = model_subject(subject, sizes, budget, of, _numbers("--round-to", round_to), groups, built_small)
        elif budget is None:
            found = run_subject(path, model, sizes, built_small)
        else:
            raise InputError("--budget is for a model; a run has its own.", hint="leave --budget out.")
        result = measured(subject, found, backends, batches, place, seconds)
    echo(json.dumps(result, indent=2) if as_json else latency_table(result))


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
