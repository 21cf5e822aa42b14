"""One member of a benchmark as a process of its own: ``python -m depl0.paper.member dense|prune RECIPE.toml OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.recipes.toml import read_recipe
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.progress import Reporter, make_reporter
from depl0.app.runtime.engine import make_engine
from depl0.app.tasks import check_network
from depl0.app.training.evaluate import final_scores
from depl0.app.training.loop import run_phase
from depl0.app.training.preflight import choose_layout
from depl0.app.training.prune import dense_phase, prune
from depl0.app.training.session import open_session
from depl0.app.training.setup import model_factory, open_data_for
from depl0.costs.count import cost
from depl0.errors import Depl0Error


def train_dense(
    recipe: Recipe, out: str | None = None, *, resume: bool = False, reporter: Reporter | None = None
) -> tuple[RunFolder, dict[str, Any]]:
    """Train the network of a recipe without gates, for as long as search and fine-tuning take together."""
    folder, goes_on = open_run(out, recipe, resume)
    done = folder.summary() if goes_on else None
    if done is not None:
        return folder, done
    engine = make_engine(recipe, folder.path)
    data = open_data_for(recipe, engine.device, engine.process_index, engine.num_processes)
    host = model_factory(recipe, data)().to(engine.device)
    example = next(iter(data.test.epoch(0)))[0][:1]
    task = task_of(recipe)
    check_network(task, host, example, data.info)
    dense_cost = cost(host, example)
    with open_session(recipe, engine, data, folder, goes_on=goes_on, resume=resume, reporter=reporter) as session:
        choose_layout(session, host, dense_cost.macs)
        run_phase(session, dense_phase(session, host))
        scores = final_scores(engine, host, data, task)
    validation = None
    if scores.validation is not None:
        validation = {"images": data.info.validation_size, "dense": {task.metric.name: scores.validation}}
    summary = {
        "name": recipe.name,
        "model": recipe.model.spec,
        "data": recipe.data.spec,
        "metric": task.metric.to_dict(),
        "dense": {task.metric.name: scores.test, "macs": dense_cost.macs, "params": dense_cost.params},
        "validation": validation,
        "channels_last": session.state.channels_last,
        "steps": session.global_step,
        "seconds": session.seconds,
        "seed": recipe.run.seed,
    }
    if engine.is_main_process:
        folder.finish(summary)
    return folder, summary


KINDS = {"dense": train_dense, "prune": prune}


def main(kind: str, recipe_file: str, out: str) -> int:
    """Carry out a recipe, from where it was left off if it was begun before; return the exit code."""
    goes_on = RunFolder(Path(out)).has_begun
    try:
        KINDS[kind](read_recipe(recipe_file), out, resume=goes_on, reporter=make_reporter())
    except Depl0Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
