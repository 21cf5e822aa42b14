"""Commands for networks: ``depl0 plan`` lists what can be pruned, ``depl0 latency`` how fast they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from depl0.app.cli.options import JSON, choice, echo, one_of, read_integers
from depl0.errors import InputError

BACKENDS = ("eager", "compile", "onnxruntime")
CLASSES = 10
"""number of classes for a factory that requires one and has no default"""


def plan_command(
    model: Annotated[str, typer.Argument(help="resnet56, torchvision:…, timm:…, package.module:make or file.py:make.")],
    example: Annotated[
        str | None,
        typer.Option(help="file.py:make, which returns example inputs: a tensor, or a tuple or dict of several."),
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(help="Side of the images, or height and width: 48x80 (default: 224, or 32).")
    ] = None,
    channels: Annotated[int, typer.Option(help="Channels of the images.", min=1)] = 3,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes (default: the network's own, or 10).", min=1)
    ] = None,
    groups: Annotated[str, typer.Option(help="all or inner.")] = "all",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print which layers of a network can be pruned."""
    import torch

    from depl0._util.user_code import load_callable
    from depl0.analysis.planning import plan
    from depl0.app.models.spec import factory
    from depl0.app.models.spec import image_size as sides
    from depl0.host.inputs import ExampleInputs

    height, width = _sides(image_size or ("224" if ":" in model or model == "resnet50" else "32"))
    made = None if example is None else ExampleInputs.of(load_callable(example, "example")(), f"example {example!r}")
    inputs = made or ExampleInputs.of(torch.randn(1, channels, height, width))
    try:
        network = factory(model, classes, channels, sides(height, width))()
    except InputError:  # a factory that requires a number of classes
        if classes is not None:
            raise
        network = factory(model, classes := CLASSES, channels, sides(height, width))()
    found = plan(network, inputs, groups=groups)
    shapes = [list(tensor.shape[1:]) for tensor in inputs.tensors()]
    (params, macs), (least_params, least_macs) = found.dense_cost or (0, 0), found.least_cost or (0, 0)
    if as_json:
        facts = {"model": model, "input_shapes": shapes, "num_classes": classes}
        costs = {"params": params, "macs": macs, "least_params_count": least_params, "least_macs_count": least_macs}
        echo(json.dumps({**facts, **costs, **found.to_dict()}, indent=2))
        return
    of_classes = "" if classes is None else f", {classes} classes"
    shown = " and ".join("×".join(map(str, shape)) for shape in shapes)
    echo(f"{model} on {shown}{' images' if made is None else ''}{of_classes}: {params:,} parameters, {macs:,} MACs")
    echo(str(found))
    echo(f"a budget can go down to {least_params:,} parameters or {least_macs:,} MACs")


def _sides(text: str) -> tuple[int, int]:
    """Return height and width.

    >>> _sides("224"), _sides("48x80")
    ((224, 224), (48, 80))
    """
    numbers = re.fullmatch(r"([1-9]\d*)(?:[x×,]([1-9]\d*))?", text.strip())
    if numbers is None:
        raise InputError(
            f"--image-size must be a side, or height and width, got {text!r} instead.", hint="write 224 or 48x80."
        )
    return int(numbers[1]), int(numbers[2] or numbers[1])


def latency_command(
    subject: Annotated[
        str, typer.Argument(help="A model (resnet56, torchvision:…, timm:…, file.py:make) or a run's folder.")
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes, e.g. 1,32.")] = "1",
    threads: Annotated[int, typer.Option(help="Threads; 0: torch's setting.", min=0, max=1024)] = 0,
    device: Annotated[str, choice("--device", ("cpu", "cuda"), "Device to measure on.")] = "cpu",
    backend: Annotated[str, typer.Option(help=f"Some of {','.join(BACKENDS)}.")] = ",".join(BACKENDS),
    image_size: Annotated[int, typer.Option(help="Models only: height and width of the images.", min=0)] = 0,
    channels: Annotated[int, typer.Option(help="Models only: channels of the images.", min=1)] = 3,
    classes: Annotated[int, typer.Option(help="Models only: number of classes.", min=1)] = 10,
    seconds: Annotated[float, typer.Option(help="Time limit per comparison (s).", min=0)] = 10.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time a network on this machine.

    It runs in PyTorch, torch.compile and ONNX Runtime, beside its original network if it is a pruned one.
    """
    import torch

    from depl0.app.cli.latency_run import latency_table, measure, networks_of_model, networks_of_run

    backends = [one_of("--backend", name, BACKENDS) for name in backend.split(",")]
    batches = read_integers("--batch", batch, "1,32")
    if threads:
        torch.set_num_threads(threads)
    if Path(subject).is_dir():
        networks, shape = networks_of_run(Path(subject))
    else:
        networks, shape = networks_of_model(subject, image_size, channels, classes)
    result = measure(subject, networks, shape, backends, batches, device, seconds)
    echo(json.dumps(result, indent=2) if as_json else latency_table(result))
