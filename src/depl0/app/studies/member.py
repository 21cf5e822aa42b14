"""One member of a study, run in this process or in a separate process started by workers.

``python -m depl0.app.studies.member FOLDER NAME`` runs the member of that name, from its last checkpoint if it was
started before. It needs only the study's folder, and writes only there; a failure is also printed as the last line, in
JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from depl0._util.io import read_json
from depl0._util.progress import StopRequested
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import parse_recipe
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.progress import Plain, Reporter
from depl0.app.signals import END_WITH_PARENT, stop_on_signals
from depl0.app.training.prune import prune
from depl0.app.trust import trusting
from depl0.errors import Depl0Error, RunInterruptedError, TrainingError

FINISHED, FAILED, STOPPED = 0, 1, 75
"""exit codes of a member's process"""
LOGS = "logs"
"""subfolder of a study for the output of processes"""


class LostWorkerError(TrainingError):
    """Raised if a member's process was ended from outside: killed, or out of memory."""


def run_member(recipe: Recipe, path: Path, reporter: Reporter) -> str | None:
    """Run a member in its folder, from its last checkpoint. Return why it failed, if it did."""
    try:
        prune(recipe, str(path), resume=RunFolder(path).has_begun, reporter=reporter)
    except RunInterruptedError:
        raise
    except Depl0Error as error:
        return error.message
    except (OSError, MemoryError, RuntimeError) as error:  # for instance, a full disk or a device out of memory
        return f"{type(error).__name__}: {error}"
    return None


def run_process(
    folder: str,
    name: str,
    where: str,
    variables: dict[str, str],
    started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> str | None:
    """Run a member as a process, and wait for it; return why it failed, if it did.

    Workers call this when resources are free. If the caller ends, the process saves and ends too.

    Args:
        folder: the study's folder.
        name: the member.
        where: the working folder, to which relative paths of recipes refer.
        variables: environment variables to set.
        started: called with the process.

    Raises:
        RunInterruptedError: a stop of the process was requested.
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
        failure: str = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        raise LostWorkerError(
            f"the process of {name} ended with code {process.returncode}.", hint=f"its output is in {log}."
        ) from None
    return failure


def main(folder: str, name: str) -> int:
    """Run the member of a study; return the exit code."""
    study = read_json(Path(folder) / "study.json")
    text = next(member["recipe"] for member in study["members"] if member["name"] == name)
    try:
        with stop_on_signals(), trusting(True):  # the user who started the study has named its code
            failure = run_member(parse_recipe(text, name), Path(folder) / name, Plain())
    except (RunInterruptedError, StopRequested) as stop:
        print(stop, file=sys.stderr)
        return STOPPED
    if failure is None:
        return FINISHED
    print(json.dumps(failure))
    return FAILED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
