"""Whether a run lays its weights out channels last: decided once, and kept with the run's state.

The two layouts round differently, so a resumed run must go on with the one it began with.
"""

from __future__ import annotations

from torch import nn

from depl0.app.runtime.memory_format import check_runs, is_faster, lay_out
from depl0.app.training.session import Session

LEAST_STEPS, LEAST_MACS = 400, 1e12
"""a training shorter than this (about a minute on one core) does not pay for the measurement"""


def choose_layout(session: Session, host: nn.Module, macs: int) -> None:
    """Decide for a whole run, keep the decision in its state, and lay the host out. ``macs``: for one image."""
    if session.state.channels_last is None:
        session.state.channels_last = _decide(session, host, macs)
    lay_out(host, session.state.channels_last)


def _decide(session: Session, host: nn.Module, macs: int) -> bool:
    recipe = session.recipe
    wanted, data = recipe.run.channels_last, session.data
    steps = data.train.steps * (recipe.search.epochs + recipe.finetune.epochs)
    is_long = steps >= LEAST_STEPS and steps * recipe.data.batch_size * macs >= LEAST_MACS
    if session.resumed is not None or wanted == "off":  # a run from before there was a choice has none to change
        return False
    if wanted == "on":
        check_runs(session.engine, host, data.info.image_shape)
        return True
    if not is_long:
        return False
    batch = max(1, recipe.data.batch_size // session.engine.num_processes)
    faster = is_faster(session.engine, host, (batch, *data.info.image_shape))
    session.reporter.note(f"channels last is {'faster' if faster else 'not faster'} here")
    return faster
