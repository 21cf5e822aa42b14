"""Dense training as a run of its own: what a search is compared with."""

from __future__ import annotations

from typing import Any

from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.task import task_of
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.engine import make_engine
from depl0.app.tasks import check_network
from depl0.app.training.evaluate import final_scores
from depl0.app.training.loop import run_phase
from depl0.app.training.phases import plain_phase
from depl0.app.training.run_context import open_session
from depl0.app.training.setup import model_factory, open_data_for
from depl0.costs.count import cost


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
    with open_session(
        recipe, engine, data, folder, host, dense_cost.macs, goes_on=goes_on, resume=resume, reporter=reporter
    ) as session:
        run_phase(session, plain_phase(session, "dense", host, recipe.search.epochs + recipe.finetune.epochs))
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
