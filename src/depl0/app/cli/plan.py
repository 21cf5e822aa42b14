"""``depl0 plan``: what can be pruned of a network, and why the rest cannot."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from depl0.app.cli.options import JSON, echo


def plan_command(
    model: Annotated[str, typer.Argument(help="resnet56, torchvision:…, timm:…, package.module:make or file.py:make.")],
    image_size: Annotated[int, typer.Option(help="Height and width of the images.", min=0)] = 0,
    channels: Annotated[int, typer.Option(help="Channels of the images.")] = 3,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    groups: Annotated[str, typer.Option(help="all or inner.")] = "all",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print, layer by layer, what can be pruned of a network, and why the rest cannot."""
    import torch

    from depl0.app.models.spec import build_model
    from depl0.planning import plan

    size = image_size or (224 if ":" in model or model == "resnet50" else 32)
    network = build_model(model, classes, channels, size)
    found = plan(network, torch.randn(1, channels, size, size), groups=groups)
    (params, macs), (least_params, least_macs) = found.dense_cost or (0, 0), found.least_cost or (0, 0)
    if as_json:
        facts = {"model": model, "input_shape": [channels, size, size], "num_classes": classes}
        costs = {"params": params, "macs": macs, "least_params_count": least_params, "least_macs_count": least_macs}
        echo(json.dumps({**facts, **costs, **found.to_dict()}, indent=2))
        return
    echo(f"{model} on {channels}×{size}×{size} images, {classes} classes: {params:,} parameters, {macs:,} MACs")
    echo(str(found))
    echo(f"a budget can go down to {least_params:,} parameters or {least_macs:,} MACs")
