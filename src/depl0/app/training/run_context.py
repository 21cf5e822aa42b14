"""The beginning and the end of every run, with gates or without: lock, session, layout of weights, trackers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from torch import nn

from depl0.app.data import Data
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.sanity import warnings_for
from depl0.app.recipes.task import task_of
from depl0.app.runs.background import BackgroundSaver
from depl0.app.runs.folder import RunFolder, open_run
from depl0.app.runs.log import Logged
from depl0.app.runs.paths import located
from depl0.app.runs.progress import Quiet, Reporter
from depl0.app.runtime.processes import alone_in, explained
from depl0.app.training.layout import choose_layout
from depl0.app.training.session import Session


@contextmanager
def open_session(
    recipe: Recipe,
    engine: Accelerator,
    data: Data,
    folder: RunFolder,
    host: nn.Module,
    macs: int,
    *,
    goes_on: bool,
    resume: bool,
    reporter: Reporter | None,
) -> Iterator[Session]:
    """Give the session of a run, taken up where it stopped if it ``goes_on``; no other process is in the folder."""
    with alone_in(folder.path, engine), explained(engine, folder.path):
        shown: Reporter = reporter if reporter and engine.is_main_process else Quiet()
        if engine.is_main_process:
            shown = Logged(shown, folder.path / "log.txt")
        session = Session(recipe, engine, data, task_of(located(recipe, folder.path)), folder, shown)
        if goes_on:
            session.resume()
        else:
            _begin(session, resume)
        choose_layout(session, host, macs)
        for warning in warnings_for(recipe, data):
            session.reporter.note(f"warning: {warning}")
        engine.init_trackers("tensorboard" if recipe.run.trackers == ("tensorboard",) else "depl0")
        try:
            with BackgroundSaver(folder.checkpoints, recipe.run.keep_checkpoints) as saver:
                session.saver = saver if engine.is_main_process else None
                yield session
        finally:
            engine.end_training()


def _begin(session: Session, resume: bool) -> None:
    """Write down what is going to happen, unless another process did so since we looked."""
    folder = session.folder
    if session.engine.is_main_process:
        open_run(str(folder.path), session.recipe, resume=False)
        folder.begin(session.recipe)
    if resume:  # said after the folder has begun: the log is in it
        session.reporter.note(f"nothing to resume: {folder.path} holds no run yet; starting from the beginning")
