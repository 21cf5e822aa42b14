"""``depl0 report``: write a page with figures for a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depl0.app.cli.options import choice, echo
from depl0.errors import InputError

if TYPE_CHECKING:
    from depl0.app.reports.html import StudyPart
    from depl0.app.reports.run import Run

FORMATS = ("html", "md", "csv", "latex")


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of one study.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to (html: the run's own, or report/ for several runs).")
    ] = None,
    format_: Annotated[str, choice("--format", FORMATS, "Output format.")] = "html",
) -> None:
    """Write report.html, or print another format."""
    from depl0.app.reports.report import as_text, write_report
    from depl0.app.reports.run import read_runs

    study = None
    if len(runs) == 1 and (runs[0] / "comparison.json").is_file():
        read, study = _read_study(runs[0])
    else:
        read = read_runs(runs)
    if out is None and format_ != "html":
        echo(as_text(read, format_), nl=False)
        return
    folder = out or (runs[0] if len(runs) == 1 else Path("report"))
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder for a report.", hint="choose another --out.")
    echo(write_report(read, folder, format_, study))


def _read_study(folder: Path) -> tuple[list[Run], StudyPart]:
    """Return the started runs of a comparison, and the comparison's own part of the page."""
    from depl0._util.io import read_json
    from depl0.app.reports.run import read_runs
    from depl0.app.studies.compare import paired_differences, tabulate
    from depl0.app.studies.pictures import study_part

    path = folder / "comparison.json"
    try:
        result = read_json(path)
        tables = tabulate(result), paired_differences(result)
        names = [str(member["name"]) for member in result["members"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {error}.", hint="call depl0 compare again to write it.") from error
    names = [name for name in names if (folder / name / "recipe.toml").is_file()]
    if not names:
        raise InputError(f"no run of the study {folder} has begun.", hint="call depl0 compare first.")
    runs, groups = read_runs([folder / name for name in names]), dict[str, list[Run]]()
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name.rpartition("/seed-")[0] or name, []).append(run)
    return runs, study_part(result, tables, groups, folder)
