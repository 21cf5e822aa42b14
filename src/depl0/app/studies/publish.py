"""Carry a study out and keep its table up to date, so that it is there however the study ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from depl0._util.io import write_whole
from depl0.app.runs.progress import Reporter
from depl0.app.runtime.engine import is_first_process
from depl0.app.studies.study import Outcome, Study, write_json
from depl0.app.table import Table, markdown_page
from depl0.errors import TrainingError

Result = dict[str, Any]


def carry_out(
    study: Study,
    reporter: Reporter,
    summarise: Callable[[list[Outcome]], Result],
    tabulate: Callable[[Result], Table],
    draw: Callable[[Result, Path], None] = lambda result, folder: None,
) -> tuple[Result, Table]:
    """Run a study; after every member write ``KIND.json``, ``KIND.md`` and the pictures; return both."""

    def publish(outcomes: list[Outcome]) -> tuple[Result, Table]:
        result = summarise(outcomes)
        table = tabulate(result)
        if is_first_process():
            write_json(study.folder / f"{study.kind}.json", result)
            write_whole(study.folder / f"{study.kind}.md", markdown_page(table).encode())
            draw(result, study.folder)
        return result, table

    return publish(study.run(reporter, lambda outcomes: (publish(outcomes), None)[1]))


def raise_if_failed(study: Study) -> None:
    """End with an error if members failed, after everything else has been done."""
    outcomes = study.outcomes()
    failed = [outcome.name for outcome in outcomes if outcome.failure is not None]
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(outcomes)} members failed: {', '.join(failed)}.",
            hint="the others are finished. The same command tries the failed ones again; with other settings, "
            "choose another --out.",
        )
