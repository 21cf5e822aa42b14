"""Write a report of runs: the page and the figures, or tables as Markdown or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from depl0._util.io import atomic_write
from depl0.app.reports import answers, curves, layers, results
from depl0.app.reports.canvas import style, write
from depl0.app.reports.html import page
from depl0.app.reports.run import DETAILED, Run
from depl0.app.reports.study import StudyPart
from depl0.app.table import Table, render

FORMATS = ("html", "md", "json", "csv", "latex")
ENDINGS = {"latex": "tex"}


def write_report(runs: Sequence[Run], folder: Path, kind: str = "html", study: StudyPart | None = None) -> Path:
    """Write the report and its figures to a folder, for a page also its tables; return the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [] if kind not in ("html", "md") else write_figures(runs, folder / "figures")
    text = page(runs, study) if kind == "html" else as_text(runs, kind, [f"figures/{name}" for name in names])
    path = folder / f"report.{ENDINGS.get(kind, kind)}"
    atomic_write(path, text.encode())
    if kind == "html":
        write_tables({"runs": results.all_runs(runs), **_tables_of(study)}, folder / "tables")
    return path


def _tables_of(study: StudyPart | None) -> dict[str, Table]:
    return {} if study is None else {f"study-{place}": table for place, table in enumerate(study.tables, start=1)}


def write_tables(tables: dict[str, Table], folder: Path) -> None:
    """Write tables as CSV with raw values, and as LaTeX with formatted values."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        for kind in ("csv", "latex"):
            atomic_write(folder / f"{name}.{ENDINGS.get(kind, kind)}", render(table, kind).encode())


def write_figures(runs: Sequence[Run], folder: Path) -> list[str]:
    """Write every figure of the first runs as PNG and SVG; return their names without the suffix."""
    names, alone = [], len(runs) == 1
    runs = runs[:DETAILED]
    with style():
        if any(run.layers for run in runs):
            write(layers.structure(runs), folder, "structure")
            names.append("structure")
        for run in runs:
            ending = "" if alone else f"-{file_name(run.label)}"
            if run.epochs:
                write(curves.figure(run), folder, f"training{ending}")
                names.append(f"training{ending}")
            if run.gates is not None:
                write(layers.heat_map(run.gates, run.label), folder, f"gates{ending}")
                names.append(f"gates{ending}")
    return names


def file_name(label: str) -> str:
    """Return a run's label as part of a file's name.

    >>> file_name("runs/digits 2")
    'runs-digits-2'
    """
    return re.sub(r"[^\w.+-]+", "-", label).strip("-.") or "run"


def as_text(runs: Sequence[Run], kind: str, figures: Sequence[str] = ()) -> str:
    """Return the report as Markdown or JSON, or the table of its runs as CSV or LaTeX."""
    if kind == "json":
        return json.dumps([_plain(run) for run in runs], indent=2, default=str) + "\n"
    if kind in ("csv", "latex"):
        return render(results.all_runs(runs), kind)
    tables = [results.all_runs(runs)] if len(runs) > 1 else []
    for run in runs[:DETAILED]:
        tables += [answers.stages(run), results.dense_to_compact(run), results.search_facts(run)]
        tables += [results.layers(run), results.unprunable(run), results.provenance(run)]
    parts = [render(table, kind) for table in tables if table.rows]
    return "\n".join(["# Pruning report\n", *(f"![{name}]({name}.png)\n" for name in figures), *parts])


def _plain(run: Run) -> dict[str, object]:
    """Return all content of a run's report as numbers."""

    def rows(table: Table) -> list[dict[str, object]]:
        return [{column.key: row.get(column.key) for column in table.columns} for row in table.rows]

    return {
        **rows(results.all_runs([run]))[0],
        "finished": run.is_finished,
        "stages": rows(answers.stages(run)),
        "layers": rows(results.layers(run)),
        "unprunable": rows(results.unprunable(run)),
        "events": [{"event": event.kind, "epoch": event.epoch} for event in curves.events(run)],
        "certificate": run.get("certificate"),
        "environment": run.environment,
        "recipe": run.recipe,
    }
