"""Write a report of runs: the page, figures and tables as files, or tables as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from depl0._util.io import atomic_write
from depl0.app.reports import curves, layers, results
from depl0.app.reports.canvas import Drawing, style, write
from depl0.app.reports.html import StudyPart, page
from depl0.app.reports.run import DETAILED, Run
from depl0.app.table import Table, render

ENDINGS = {"latex": "tex"}


def write_report(runs: Sequence[Run], folder: Path, kind: str = "html", study: StudyPart | None = None) -> Path:
    """Write the report to a folder, for a page also its figures and tables; return the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"report.{ENDINGS.get(kind, kind)}"
    if kind != "html":
        atomic_write(path, as_text(runs, kind).encode())
        return path
    atomic_write(path, page(runs, study).encode())
    drawings = {drawing.name: drawing for drawing in study.drawings} if study is not None else {}
    for run in runs[:DETAILED]:
        ending = "" if len(runs) == 1 else f"-{file_name(run.label)}"
        drawings |= {f"{drawing.name}{ending}": drawing for drawing in drawings_of(run)}
    tables = {f"study-{place}": table for place, table in enumerate(study.tables if study else (), start=1)}
    write_files(folder, drawings, {"runs": results.all_runs(runs), **tables})
    return path


def drawings_of(run: Run) -> list[Drawing]:
    """Return every drawing of a run."""
    gates = [] if run.gates is None else [layers.heat_map(run.gates, run.label)]
    structure = layers.structure(run)
    return [*([] if structure is None else [structure]), *curves.drawings(run), *gates]


def write_files(folder: Path, drawings: dict[str, Drawing], tables: dict[str, Table]) -> None:
    """Write figures as PNG, SVG and PDF, and tables as CSV with raw values and as LaTeX with formatted ones."""
    with style():
        for name, drawing in drawings.items():
            write(drawing.figure(), folder / "figures", name)
    (folder / "tables").mkdir(exist_ok=True)
    for name, table in tables.items():
        for kind in ("csv", "latex"):
            atomic_write(folder / "tables" / f"{name}.{ENDINGS.get(kind, kind)}", render(table, kind).encode())


def file_name(label: str) -> str:
    """Return a run's label as part of a file's name.

    >>> file_name("runs/digits 2")
    'runs-digits-2'
    """
    return re.sub(r"[^\w.+-]+", "-", label).strip("-.") or "run"


def as_text(runs: Sequence[Run], kind: str) -> str:
    """Return the tables of the report as Markdown, or the table of its runs as CSV or LaTeX."""
    if kind != "md":
        return render(results.all_runs(runs), kind)
    tables = [results.all_runs(runs)] if len(runs) > 1 else []
    for run in runs[:DETAILED]:
        tables += [results.stages(run), results.dense_to_compact(run), results.search_facts(run)]
        tables += [results.layers(run), results.unprunable(run), results.provenance(run)]
    return "\n".join(["# Pruning report\n", *(render(table, "md") for table in tables if table.rows)])
