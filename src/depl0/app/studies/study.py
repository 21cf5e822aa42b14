"""A study: many recipes in one folder, each an ordinary run in a folder of its own.

A study may be stopped at any time and run again. Finished members are read, unfinished ones resume from their last
checkpoint, and failed ones are tried again. A failed member does not affect the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from depl0._util.io import atomic_write, read_json
from depl0._util.progress import StopRequested, check_stop
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import parse_recipe, write_recipe
from depl0.app.runs.checkpoint import wrap_content_errors
from depl0.app.runs.folder import RunFolder, differences
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.processes import is_first_process
from depl0.app.studies.member import LOGS, run_member
from depl0.app.studies.workers import Job, Workers
from depl0.app.tasks import metric_in
from depl0.errors import FormatError, InputError, RunInterruptedError, TrainingError

POLL_SECONDS = 0.2
_OTHER = "choose another --out."

Result = dict[str, Any]
"""content of a study's JSON file"""
Status = Literal["finished", "failed", "half done", "not started"]


@final
@dataclass(frozen=True)
class Outcome:
    """Status and result of a member."""

    name: str
    status: Status
    summary: dict[str, Any] | None = None
    failure: str | None = None
    """the error"""


@final
class Study:
    """Members by name, in one folder. The constructor checks the folder and writes nothing."""

    def __init__(self, members: Mapping[str, Recipe], folder: Path) -> None:
        if not members:
            raise InputError("the comparison has no members.")
        self.members = dict(members)
        self.folder = folder
        self._file = folder / "study.json"
        self._failures: dict[str, str] = {}
        self._take_up()

    def run(
        self, reporter: Reporter, after_each: Callable[[list[Outcome]], object], workers: Workers | None = None
    ) -> list[Outcome]:
        """Run the unfinished members, one after the other or in parallel by workers.

        ``after_each`` receives the outcomes so far. An interruption ends the study; a failed member does not.
        """
        self._write()
        ended = self._in_turn(reporter) if workers is None else self._on(workers, reporter)
        with closing(ended):
            try:
                for name, failure in ended:
                    if failure is not None:
                        self._failures[name] = failure
                        reporter.note(f"{name} failed: {failure}")
                    after_each(self.outcomes())
            except (RunInterruptedError, StopRequested, KeyboardInterrupt) as error:
                outcomes = self.outcomes()
                after_each(outcomes)
                left = sum(outcome.status in ("half done", "not started") for outcome in outcomes)
                raise RunInterruptedError(
                    f"interrupted with {left} of {len(outcomes)} members left; the others are in {self.folder}.",
                    hint="re-run the same command to continue.",
                ) from error
        return self.outcomes()

    def outcomes(self) -> list[Outcome]:
        """Return the current outcome of every member."""
        return [self._outcome(name) for name in self.members]

    # -- members -----------------------------------------------------------------------------------------------------

    def _in_turn(self, reporter: Reporter) -> Generator[tuple[str, str | None], None, None]:
        """Run the unfinished members one after the other in this process, and yield each with its failure, if any."""
        for number, (name, recipe) in enumerate(self.members.items(), start=1):
            place = f"{name} ({number}/{len(self.members)})"
            if self._is_finished(name):
                reporter.note(f"{place}: finished already")
                continue
            reporter.note(place)
            yield name, run_member(recipe, self.folder / name, reporter)

    def _on(self, workers: Workers, reporter: Reporter) -> Generator[tuple[str, str | None], None, None]:
        """Submit all unfinished members to workers, and yield each with its failure, if any, once it has ended."""
        left = [name for name in self.members if not self._is_finished(name)]
        jobs = {name: workers.submit(self.folder, name) for name in left}
        reporter.note(f"{len(left)} of {len(self.members)} members submitted; they print to {self.folder / LOGS}")
        try:
            while jobs:
                for name in [name for name, job in jobs.items() if job.done()]:
                    failure = _result(jobs.pop(name))
                    if failure is None:
                        reporter.note(f"{name}: finished ({len(self.members) - len(jobs)}/{len(self.members)})")
                    yield name, failure
                check_stop()
                time.sleep(POLL_SECONDS)
        except BaseException:
            workers.close(cancel=True)
            raise
        workers.close(cancel=False)

    def _is_finished(self, name: str) -> bool:
        return self._outcome(name).status == "finished"

    def _outcome(self, name: str) -> Outcome:
        folder = RunFolder(self.folder / name)
        try:
            with wrap_content_errors(str(folder.path / "summary.json")):
                summary = folder.summary()
                if summary is not None:
                    float(summary["compact"][metric_in(summary).name])
                    return Outcome(name, "finished", summary=summary)
        except FormatError as error:
            return Outcome(name, "failed", failure=error.message)
        if name in self._failures:
            return Outcome(name, "failed", failure=self._failures[name])
        return Outcome(name, "half done" if folder.has_begun else "not started")

    # -- study.json --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if not is_first_process():
            return
        members = [{"name": name, "recipe": write_recipe(recipe)} for name, recipe in self.members.items()]
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._file, to_json({"members": members}))

    def _take_up(self) -> None:
        """Raise if a folder belongs to something else."""
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file, not a folder for a comparison.", hint=_OTHER)
        if self._file.exists():
            self._check_same(_read(self._file))
        elif self.folder.exists() and any(not entry.name.endswith(".part") for entry in self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and holds no comparison.", hint=_OTHER)

    def _check_same(self, earlier: Mapping[str, Recipe]) -> None:
        hint = "continue that comparison with its own settings, or choose another --out."
        if list(earlier) != list(self.members):
            raise InputError(
                f"{self.folder} holds another comparison: its members are {', '.join(earlier)}; "
                f"asked for: {', '.join(self.members)}.",
                hint=hint,
            )
        for name, recipe in self.members.items():
            if earlier[name] != recipe:
                field, was, now = next(differences(earlier[name], recipe))
                raise InputError(
                    f"{self.folder} holds a comparison of another recipe: {field} of {name} was {was!r} and is now "
                    f"{now!r}.",
                    hint=hint,
                )


def _result(job: Job) -> str | None:
    """Return the error of a member that workers have run or could not run."""
    try:
        return job.result()
    except RunInterruptedError:
        raise
    except Exception as error:  # the workers, their cluster or its network may raise any exception
        message = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {message[-1]}"


def raise_if_failed(study: Study) -> None:
    """Raise an error if members failed, after all other work is done."""
    outcomes = study.outcomes()
    failed = [outcome.name for outcome in outcomes if outcome.failure is not None]
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(outcomes)} members failed: {', '.join(failed)}.",
            hint="the others are finished. The same command tries the failed ones again; with other settings, "
            "choose another --out.",
        )


def to_json(value: Any) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _read(path: Path) -> dict[str, Recipe]:
    try:
        found = read_json(path)
        return {
            member["name"]: parse_recipe(member["recipe"], f"{member['name']} in {path}") for member in found["members"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}.", hint=_OTHER) from error
