"""``depl0 latency``: how fast a network is on this machine, original and pruned side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from depl0.app.cli.options import JSON, choice, echo, one_of
from depl0.errors import InputError

BACKENDS = ("eager", "compile", "onnxruntime")


def latency_command(
    subject: Annotated[
        str, typer.Argument(help="A model (resnet56, torchvision:…, timm:…, file.py:make) or a run's folder.")
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes, e.g. 1,32.")] = "1",
    threads: Annotated[int, typer.Option(help="Threads; 0: torch's setting.", min=0, max=1024)] = 0,
    device: Annotated[str, choice("--device", ("cpu", "cuda"), "Device to measure on.")] = "cpu",
    backend: Annotated[str, typer.Option(help=f"Some of {','.join(BACKENDS)}.")] = ",".join(BACKENDS),
    budget: Annotated[
        float | None, typer.Option(help="Models only: predict the speed at this fraction of the MACs, untrained.")
    ] = None,
    round_to: Annotated[str, typer.Option(help="With --budget: multiples of channels to compare, e.g. 1,8,16.")] = "1",
    image_size: Annotated[int, typer.Option(help="Models only: height and width of the images.", min=0)] = 0,
    channels: Annotated[int, typer.Option(help="Models only: channels of the images.", min=1)] = 3,
    classes: Annotated[int, typer.Option(help="Models only: number of classes.", min=1)] = 10,
    seconds: Annotated[float, typer.Option(help="Time limit per comparison (s).")] = 10.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time a network on this machine.

    It runs in PyTorch, torch.compile and ONNX Runtime, beside its original network if it is a pruned one.
    """
    from depl0.app.cli.latency_run import latency_table, measure, networks_of_model, networks_of_run, threads_set

    batches, backends = _numbers("--batch", batch), [one_of("--backend", name, BACKENDS) for name in backend.split(",")]
    multiples = _numbers("--round-to", round_to)
    with threads_set(threads):
        if not Path(subject).is_dir():
            networks, shape = networks_of_model(subject, image_size, channels, classes, budget, multiples)
        elif budget is None:
            networks, shape = networks_of_run(Path(subject))
        else:
            raise InputError("--budget is for a model; a run has its own.", hint="leave --budget out.")
        result = measure(subject, networks, shape, backends, batches, device, seconds)
    echo(json.dumps(result, indent=2) if as_json else latency_table(result))


def _numbers(option: str, words: str) -> list[int]:
    try:
        numbers = [int(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if not numbers or any(number < 1 for number in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(f"{option} takes integers such as 1,32, got {words!r} instead.")
    return numbers
