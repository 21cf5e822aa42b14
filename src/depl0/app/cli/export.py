"""``depl0 export``: a compact network as a file that runs without depl0."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depl0._util.registry import unknown
from depl0.app.cli.options import echo
from depl0.errors import InputError

if TYPE_CHECKING:
    from depl0.app.deploy.int8 import Deployed


def export_command(
    path: Annotated[Path, typer.Argument(help="A run's folder, or the folder of a compact network.")],
    *,
    to: Annotated[
        str,
        typer.Option(help="onnx, pt2, safetensors, openvino, executorch, or file.py:Name."),
    ],
    opset: Annotated[int | None, typer.Option(help="ONNX opset (default: 18).")] = None,
    dynamic_batch: Annotated[bool, typer.Option("--dynamic-batch", help="Export with a dynamic batch size.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="onnx: quantize, and measure the accuracy on the test set.")
    ] = False,
    max_drop: Annotated[
        float | None, typer.Option(help="With --int8: largest loss of the metric, in points (default: 1).")
    ] = None,
    calibration_images: Annotated[
        int | None, typer.Option(help="With --int8: training images for calibration (default: 512).", min=1)
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="With --int8: the data, if the run's has moved or there is no run.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="With --int8 and no run: the task (default: classification).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output file (default: NAME.onnx, …).")] = None,
    model: Annotated[str | None, typer.Option(help="Dense-model factory (default: the run's own).")] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input, e.g. 3,224,224, if the folder lacks it.")
    ] = None,
) -> None:
    """Write a pruned network as a verified file."""
    from depl0.app.deploy.source import open_source
    from depl0.export import Request, names, target, write_checked  # torch.onnx is slow to import
    from depl0.export.int8 import IMAGES

    if ":" not in to and to not in names():
        raise unknown("format", to, names())
    kind, name = target(to), _name(path)
    if int8:
        from depl0.app.deploy.int8 import Options, export_int8  # opens the run's data, as training does

        if to != "onnx":
            raise InputError(f"--int8 is for --to onnx, got --to {to} instead.", hint="--to onnx --int8")
        options = Options(
            1.0 if max_drop is None else max_drop, calibration_images or IMAGES, opset, dynamic_batch, data, task
        )
        source, file = open_source(path, model, _shape(shape)), out or Path(f"{name}.int8{kind.suffix}")
        echo(_said(export_int8(path, source, file, options)))
        return
    of_int8 = {"--max-drop": max_drop, "--calibration-images": calibration_images, "--data": data, "--task": task}
    for flag, value in of_int8.items():
        if value is not None:
            raise InputError(f"{flag} is for --int8 only.", hint=f"leave {flag} out.")
    source = open_source(path, model, _shape(shape))
    request = Request(source.module, source.example, source.metadata, opset, dynamic_batch)
    done = write_checked(kind, request, out or Path(name + kind.suffix))
    echo(f"{done.path}: {done.size:,} bytes, read by another process, largest relative error {done.max_error:.1g}")


def _name(path: Path) -> str:
    """Return the name of a run, which is that of its folder."""
    return path.resolve().parent.name if path.resolve().name == "compact" else path.resolve().name


def _said(done: Deployed) -> str:
    """Return the lines on the size and the accuracy of an int8 file."""
    metric, found = done.metric, done.quantized
    assert found.before is not None and found.after is not None
    change = metric.difference(found.before, found.after)
    return (
        f"{done.file.path}: {done.file.size:,} bytes, read by another process\n"
        f"{metric.label} {metric.show(found.before)} in float, {metric.show(found.after)} in int8 ({change})"
    )


def _shape(words: str | None) -> tuple[int, ...] | None:
    if words is None:
        return None
    try:
        sizes = tuple(int(word) for word in words.split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise InputError(f"--shape takes integers such as 3,224,224, got {words!r} instead.")
    return sizes
