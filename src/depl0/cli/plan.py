"""``depl0 plan``: what can be pruned of a network, and why not the rest."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def plan_command(
    model: Annotated[str, typer.Argument(help="resnet56, torchvision:…, timm:…, package.module:make or file.py:make.")],
    image_size: Annotated[int, typer.Option(help="Height and width of the images.")] = 0,
    channels: Annotated[int, typer.Option(help="Channels of the images.")] = 3,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    groups: Annotated[str, typer.Option(help="all or inner.")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print, layer by layer, what can be pruned of a network, and why the rest cannot."""
    import torch

    from depl0.models.spec import build_model
    from depl0.planning import plan

    size = image_size or (224 if ":" in model or model == "resnet50" else 32)
    network = build_model(model, classes, channels, size)
    found = plan(network, torch.randn(1, channels, size, size), groups=groups)
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
