"""``depl0 plan``: list the layers of a network that can be pruned, and why the others cannot."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from depl0.app.cli.options import JSON, echo
from depl0.errors import InputError

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
    from depl0.app.models.spec import build_model
    from depl0.app.models.spec import image_size as sides
    from depl0.host.inputs import ExampleInputs

    height, width = _sides(image_size or ("224" if ":" in model or model == "resnet50" else "32"))
    made = None if example is None else ExampleInputs.of(load_callable(example, "example")(), f"example {example!r}")
    inputs = made or ExampleInputs.of(torch.randn(1, channels, height, width))
    try:
        network = build_model(model, classes, channels, sides(height, width))
    except InputError:  # a factory that requires a number of classes
        if classes is not None:
            raise
        network = build_model(model, classes := CLASSES, channels, sides(height, width))
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
