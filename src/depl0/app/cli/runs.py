"""Commands for finished runs: ``depl0 eval``, ``depl0 export`` and ``depl0 report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from depl0._util.registry import unknown
from depl0.app.cli.options import JSON, SET, echo, read_assignments, read_integers
from depl0.errors import Depl0Error, InputError
from depl0.metric import ACCURACY, Metric

RUN = typer.Argument(help="A run's folder, or the folder of a compact network.")
MODEL = typer.Option(help="Dense-model factory (default: the run's own).")


class LimitError(Depl0Error):
    """The network misses a limit that the command line set."""


def eval_command(
    path: Annotated[Path, RUN],
    data: Annotated[str | None, typer.Option(help="Data to evaluate on (default: the run's own).")] = None,
    model: Annotated[str | None, MODEL] = None,
    task_spec: Annotated[str | None, typer.Option("--task", help="Task (default: the run's own).")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    set_: Annotated[list[str] | None, SET] = None,
    min_accuracy: Annotated[
        float | None, typer.Option(help="Fail if the accuracy is lower: 0.9 is 90 %.", min=0, max=1)
    ] = None,
    max_macs: Annotated[
        float | None, typer.Option(help="Fail if more than this fraction of the original MACs is left.", min=0, max=1)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Evaluate a saved compact network."""
    from depl0.app.recipes import catalog
    from depl0.app.recipes.recipe import task_of
    from depl0.app.recipes.toml import with_overrides
    from depl0.app.runs.folder import find_compact
    from depl0.app.runs.paths import recipe_of_run
    from depl0.app.runtime.processes import make_accelerator
    from depl0.app.tasks import check_network
    from depl0.app.training.evaluate import evaluate
    from depl0.app.training.setup import first_example, model_factory, open_data_for
    from depl0.costs.count import cost
    from depl0.surgery.files import load, read_record

    folder, recipe_file = find_compact(path)
    if recipe_file is None and (data is None or model is None):
        raise InputError(f"{path} is a compact network without its run.", hint="pass --data and --model as in the run.")
    options = {"data.spec": data, "model.spec": model, "task.spec": task_spec, "run.device": device}
    given = {name: value for name, value in options.items() if value is not None} | read_assignments(set_)
    recipe = with_overrides(recipe_of_run(recipe_file, given) if recipe_file else catalog.get("digits"), given)
    accelerator = make_accelerator(recipe)
    opened = open_data_for(recipe, accelerator.device)
    compact = load(folder, model_factory(recipe, opened)).to(accelerator.device)
    example = first_example(opened)
    task = task_of(recipe)
    check_network(task, compact, example, opened.info)
    score = evaluate(accelerator, compact, opened.test.epoch(0), task)
    counted = cost(compact, example)
    result = {task.metric.name: score, "images": opened.info.test_size, "macs": counted.macs, "params": counted.params}
    if as_json:
        echo(json.dumps(result, indent=2))
    else:
        shown = f"{task.metric.label} {task.metric.show(score)}"
        echo(f"{shown} on {opened.info.test_size:,} images; {counted}")
    _check_limits(task.metric, score, counted.macs / read_record(folder).dense.macs, min_accuracy, max_macs)


def _check_limits(metric: Metric, score: float, macs: float, accuracy: float | None, most_macs: float | None) -> None:
    """Raise if the network misses a limit of the command line, so that the exit code is 1."""
    if accuracy is not None and metric != ACCURACY:
        raise InputError(f"--min-accuracy is for classifiers, and the metric is {metric.label}.", hint="leave it out.")
    if accuracy is not None and score < 100 * accuracy:
        raise LimitError(f"the accuracy is {score:.2f} %, below --min-accuracy {accuracy:g}.")
    if most_macs is not None and macs > most_macs:
        raise LimitError(f"{macs:.3f} of the original MACs are left, above --max-macs {most_macs:g}.")


def export_command(
    path: Annotated[Path, RUN],
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
    model: Annotated[str | None, MODEL] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input, e.g. 3,224,224, if the folder lacks it.")
    ] = None,
) -> None:
    """Write a pruned network as a verified file."""
    from depl0.app.deploy.source import open_source
    from depl0.export import Request, names, target, write_checked  # torch.onnx is slow to import

    if ":" not in to and to not in names():
        raise unknown("format", to, names())
    if int8 and to != "onnx":
        raise InputError(f"--int8 is for --to onnx, got --to {to} instead.", hint="--to onnx --int8")
    of_int8 = {"--max-drop": max_drop, "--calibration-images": calibration_images, "--data": data, "--task": task}
    for flag, value in of_int8.items():
        if value is not None and not int8:
            raise InputError(f"{flag} is for --int8 only.", hint=f"leave {flag} out.")
    sizes = None if shape is None else tuple(read_integers("--shape", shape, "3,224,224"))
    kind, source = target(to), open_source(path, model, sizes)
    run = path.resolve().parent if path.resolve().name == "compact" else path.resolve()
    file = out or Path(f"{run.name}{'.int8' * int8}{kind.suffix}")
    if not int8:
        request = Request(source.module, source.example, source.metadata, opset, dynamic_batch)
        done = write_checked(kind, request, file)
        echo(f"{done.path}: {done.size:,} bytes, read by another process, largest relative error {done.max_error:.1g}")
        return
    from depl0.app.deploy.int8 import export_int8  # opens the run's data, as training does

    given = {"max_drop": max_drop, "images": calibration_images}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    done, found, metric = export_int8(
        path, source, file, data=data, task=task, opset=opset, dynamic_batch=dynamic_batch, **options
    )
    assert found.before is not None and found.after is not None
    change = metric.difference(found.before, found.after)
    echo(f"{done.path}: {done.size:,} bytes, read by another process")
    echo(f"{metric.label} {metric.show(found.before)} in float, {metric.show(found.after)} in int8 ({change})")


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of one study.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to (default: the run's own, or report/ for several).")
    ] = None,
) -> None:
    """Write report.html."""
    from depl0.app.reports.report import write_report
    from depl0.app.reports.run import read_runs
    from depl0.app.studies.pictures import read_study

    is_study = len(runs) == 1 and (runs[0] / "comparison.json").is_file()
    read, study = read_study(runs[0]) if is_study else (read_runs(runs), None)
    folder = out or (runs[0] if len(runs) == 1 else Path("report"))
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder for a report.", hint="choose another --out.")
    echo(write_report(read, folder, study))
