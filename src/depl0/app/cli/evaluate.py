"""``depl0 eval``: evaluate a compact network from its saved files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from depl0._util.metric import ACCURACY, Metric
from depl0.app.cli.options import JSON, SET, echo, read_assignments
from depl0.errors import Depl0Error, InputError


class LimitError(Depl0Error):
    """The network misses a limit that the command line set."""


def eval_command(
    path: Annotated[Path, typer.Argument(help="A run's folder, or the folder of a compact network.")],
    data: Annotated[str | None, typer.Option(help="Data to evaluate on (default: the run's own).")] = None,
    model: Annotated[str | None, typer.Option(help="Dense-model factory (default: the run's own).")] = None,
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
    from depl0.app.runtime.accelerator import make_accelerator
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
    _check_limits(task.metric, score, counted.macs / read_record(folder).dense_cost[1], min_accuracy, max_macs)


def _check_limits(
    metric: Metric, score: float, macs: float, min_accuracy: float | None, max_macs: float | None
) -> None:
    """Raise if the network misses a limit of the command line, so that the exit code is 1."""
    if min_accuracy is not None and metric != ACCURACY:
        raise InputError(f"--min-accuracy is for classifiers, and the metric is {metric.label}.", hint="leave it out.")
    if min_accuracy is not None and score < 100 * min_accuracy:
        raise LimitError(f"the accuracy is {score:.2f} %, below --min-accuracy {min_accuracy:g}.")
    if max_macs is not None and macs > max_macs:
        raise LimitError(f"{macs:.3f} of the original MACs are left, above --max-macs {max_macs:g}.")
