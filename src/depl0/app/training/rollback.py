"""``--on-nan rollback``: back to the last good checkpoint, on with half the learning rates, a few times at most."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from depl0.app.runs.checkpoint import fitting, load_newest, save_checkpoint
from depl0.app.training.session import Session, state_of
from depl0.errors import DivergedError

MOST = 3


def roll_back(session: Session, trouble: DivergedError) -> Session:
    """Return the session of a run that goes on from its last good checkpoint, or raise the trouble again.

    The checkpoint is written once more, with the rollback in its state: what follows is a run that was resumed, and
    one that is killed now knows of it too.
    """
    run = session.recipe.run
    if run.on_nan != "rollback":
        raise trouble
    session.wait_until_saved()
    session.engine.wait_for_everyone()
    found = load_newest(session.folder.checkpoints)
    if found is None:
        raise trouble
    step, state = found
    with fitting(session.folder.checkpoints, step):
        run_state, metrics = state_of(state, session.data.train.steps), str(state["metrics"])
        earlier = run_state.rollbacks
    if len(earlier) >= MOST:
        raise DivergedError(
            f"{trouble.message} The run has gone back {MOST} times already, to no avail.",
            hint="start again with lower learning rates (--lr, --gate-lr), or set search.clip_norm.",
        ) from trouble
    event = _event(session, step, state, trouble, len(earlier) + 1)
    state.pop("history", None)
    state["run"] = dataclasses.replace(run_state, rollbacks=[*earlier, event]).to_tree()
    state["metrics"] = f"{metrics}{json.dumps(event)}\n"
    if session.engine.is_main_process:
        save_checkpoint(session.folder.checkpoints, step, state, run.keep_checkpoints)
    session.engine.wait_for_everyone()
    session.reporter.note(f"{trouble.message} Back to step {step}, with learning rates times {event['rate_factor']:g}.")
    fresh = Session(session.recipe, session.engine, session.data, session.task, session.folder, session.reporter)
    fresh.distillation, fresh.saver, fresh.trained = session.distillation, session.saver, session.trained
    fresh.resume()
    return fresh


def _event(session: Session, step: int, state: dict[str, Any], trouble: DivergedError, number: int) -> dict[str, Any]:
    return {
        "event": "rollback",
        "phase": state["phase"],
        "epoch": state["epoch"] + state["step"] / session.data.train.steps,
        "step": step,
        "cause": trouble.message,
        "noticed_at_step": session.global_step,
        "rate_factor": 0.5**number,
    }
