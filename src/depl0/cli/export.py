"""``depl0 export``: a compact network as a file that runs without depl0."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from depl0.errors import InputError


def export_command(
    path: Annotated[Path, typer.Argument(help="A run's folder, or the folder of a compact network.")],
    to: Annotated[str, typer.Option(help="onnx, pt2 or safetensors.")],
    opset: Annotated[int | None, typer.Option(help="ONNX opset (default: 18).")] = None,
    dynamic_batch: Annotated[bool, typer.Option("--dynamic-batch", help="Leave the batch size free.")] = False,
    out: Annotated[Path | None, typer.Option(help="The file (default: NAME.onnx, … in this folder).")] = None,
    model: Annotated[str | None, typer.Option(help="What builds the dense network; a run knows its own.")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input, e.g. 3,224,224, if the folder lacks it.")
    ] = None,
) -> None:
    """Write a compact network as one file, and keep it only if another process gets the same outputs from it."""
    from depl0.export import Request, open_source, target, write_checked  # torch.onnx is slow to import

    kind = target(to)
    source = open_source(path, model, _shape(shape))
    request = Request(source.module, source.example, source.metadata, opset, dynamic_batch)
    name = path.resolve().parent.name if path.resolve().name == "compact" else path.resolve().name
    done = write_checked(kind, request, out if out is not None else Path(name + kind.suffix))
    typer.echo(
        f"{done.path}: {done.size:,} bytes, read by another process, largest relative error {done.max_error:.1g}"
    )


def _shape(words: str | None) -> tuple[int, ...] | None:
    if words is None:
        return None
    try:
        sizes = tuple(int(word) for word in words.split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise InputError(f"--shape takes whole numbers such as 3,224,224, got {words!r} instead.")
    return sizes
