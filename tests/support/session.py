"""A session of the training loop, without a command around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depl0.app.recipes.recipe import task_of
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.processes import make_accelerator
from depl0.app.training.session import Session
from depl0.app.training.setup import attach_for, model_factory, open_data_for
from depl0.app.training.tracking import Trackers
from depl0.gated import GatedModel
from tests.networks.tiny import tiny_recipe


def make_session(tmp_path: Path, **fields: Any) -> tuple[Session, GatedModel]:
    recipe = tiny_recipe(**fields)
    accelerator = make_accelerator(recipe)
    data = open_data_for(recipe, accelerator.device)
    host = model_factory(recipe, data)()
    gated = attach_for(recipe, host, next(iter(data.test.epoch(0)))[0][:1])
    folder = RunFolder(tmp_path / "run")
    folder.begin(recipe)
    trackers = Trackers(lambda text: None)
    return Session(recipe, accelerator, data, task_of(recipe), folder, Reporter(), trackers), gated
