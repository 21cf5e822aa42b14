"""One member of a study: run here, or as a process of its own that workers start.

``python -m depl0.app.studies.member FOLDER NAME`` runs the member of that name, from its last checkpoint if it was
begun before. The study's folder is all that it needs, and all that it leaves; a failure is also its last line, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from depl0._util.io import read_json
from depl0._util.progress import END_WITH_PARENT, StopRequested, stop_on_signals
from depl0._util.user_code import trusting
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import parse_recipe
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.progress import Plain, Reporter
from depl0.app.training.prune import prune
from depl0.app.training.session import Shared
from depl0.errors import Depl0Error, RunInterruptedError, TrainingError

FINISHED, FAILED, STOPPED = 0, 1, 75
"""exit codes of a member's process"""
LOGS = "logs"
"""the folder, within a study's, of what processes print"""


@final
@dataclass(frozen=True)
class Failure:
    """Why a member failed."""

    kind: str
    message: str
    hint: str | None = None


class LostWorkerError(TrainingError):
    """A member's process has ended in a way that is not its own: killed, or without memory."""


def run_member(recipe: Recipe, path: Path, reporter: Reporter, shared: Shared | None = None) -> Failure | None:
    """Run a member in its folder, from its last checkpoint; return why it failed, if it did."""
    try:
        prune(recipe, str(path), resume=RunFolder(path).has_begun, reporter=reporter, shared=shared)
    except RunInterruptedError:
        raise
    except Depl0Error as error:
        return Failure(type(error).__name__, error.message, error.hint)
    except (OSError, MemoryError, RuntimeError) as error:  # a full disk, a device without memory
        return Failure(type(error).__name__, f"{type(error).__name__}: {error}")
    return None


def run_process(
    folder: str,
    name: str,
    where: str,
    variables: dict[str, str],
    started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> dict[str, Any] | None:
    """Run a member as a process, and wait for it; return its failure, if it failed.

    Workers call this where there is room. Whatever ends the caller ends the process too, which saves first.

    Args:
        folder: the study's folder.
        name: the member.
        where: the folder to work in, which relative paths of recipes start from.
        variables: environment variables to set.
        started: is given the process.

    Raises:
        RunInterruptedError: the process was asked to stop.
        LostWorkerError: it was killed.
    """
    log = Path(folder) / LOGS / f"{name.replace('/', '-')}.log"
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "depl0.app.studies.member", folder, name]
    environment = {**os.environ, END_WITH_PARENT: "1", **variables}
    with (
        log.open("ab") as written,
        subprocess.Popen(command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=written) as process,
    ):
        started(process)
        try:
            said, _ = process.communicate()
        except BaseException:  # the workers cancel
            process.terminate()
            process.wait()
            raise
    if process.returncode == FINISHED:
        return None
    if process.returncode == STOPPED:
        raise RunInterruptedError(f"{name} was interrupted.", hint="re-run the same command to continue.")
    try:
        failure: dict[str, Any] = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        raise LostWorkerError(
            f"the process of {name} ended with code {process.returncode}.", hint=f"what it printed is in {log}."
        ) from None
    return failure


def main(folder: str, name: str) -> int:
    """Run the member of a study; return the exit code."""
    study = read_json(Path(folder) / "study.json")
    text = next(member["recipe"] for member in study["members"] if member["name"] == name)
    try:
        with stop_on_signals(), trusting(True):  # whoever started the study has named its code
            failure = run_member(parse_recipe(text, name), Path(folder) / name, Plain())
    except (RunInterruptedError, StopRequested) as stop:
        print(stop, file=sys.stderr)
        return STOPPED
    if failure is None:
        return FINISHED
    print(json.dumps(asdict(failure)))
    return FAILED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
