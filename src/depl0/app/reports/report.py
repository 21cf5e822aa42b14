"""Write a report of runs: one self-contained HTML page, with its figures and tables as files.

The page makes no requests, and all names in it are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from depl0 import __version__
from depl0._util.io import atomic_write
from depl0.app.recipes.toml import write_recipe
from depl0.app.reports import figures, tables
from depl0.app.reports.canvas import Drawing, style, write
from depl0.app.reports.run import DETAILED, Run
from depl0.app.reports.tables import fraction
from depl0.app.runs.checkpoint import wrap_content_errors
from depl0.app.table import Table, csv, shown
from depl0.gates.threshold import COSTS


@dataclass(frozen=True)
class StudyPart:
    """The part of the page for a study, above its runs."""

    title: str
    tables: tuple[Table, ...]
    drawings: tuple[Drawing, ...]


@wrap_content_errors("a file of these runs")
def write_report(runs: Sequence[Run], folder: Path, study: StudyPart | None = None) -> Path:
    """Write report.html to a folder, with its figures and tables as files; return the page's path.

    If there are several runs, each has a page of its own in its folder, to which the page links.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawings: Sequence[Drawing | None] = () if study is None else study.drawings
    if study is None and len(runs) == 1:
        drawings = [figures.structure(runs[0]), figures.widths(runs[0]), *figures.drawings(runs[0])]
    else:
        for run in runs[:DETAILED]:
            atomic_write(run.path / "report.html", page([run]).encode())
    path = folder / "report.html"
    atomic_write(path, page(runs, study, folder).encode())
    with style():
        for drawing in filter(None, drawings):
            write(drawing.figure(), folder / "figures", drawing.name)
    found = {"runs": tables.all_runs(runs)}
    found |= {f"study-{place}": table for place, table in enumerate(study.tables if study else (), start=1)}
    (folder / "tables").mkdir(exist_ok=True)
    for name, table in found.items():
        atomic_write(folder / "tables" / f"{name}.csv", csv(table).encode())  # raw values
    return path


# -- the page ----------------------------------------------------------------------------------------------------------


def page(runs: Sequence[Run], study: StudyPart | None = None, folder: Path = Path()) -> str:
    """Return the text of ``report.html`` in a folder: a run in detail, or a table of runs with links to their pages."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    script, overview, links = _own("report.js"), None, {}
    title, lead = f"Pruning report: {runs[0].label}", _what(runs[0])
    if study is not None or len(runs) > 1:
        title, lead, overview = f"Pruning report: {len(runs)} runs", "", tables.all_runs(runs)
        links = {run.label: os.path.relpath(run.path / "report.html", folder) for run in runs[:DETAILED]}
    if study is not None and overview is not None:
        title, lead = f"Study: {study.title}", f"{runs[0].get('model')} on {runs[0].get('data')}, {len(runs)} runs"
        columns = [each for each in overview.columns if each.key not in ("method", "model")]  # they are in its tables
        overview = replace(overview, columns=columns)
    text: str = environment.from_string(_own("report.html")).render(
        title=title,
        lead=lead,
        study=study,
        all_runs=overview,
        links=links,
        s=_section(runs[0]) if overview is None else None,
        css=Markup(_own("report.css")),
        js=Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        cell=shown,
    )
    return text


def _own(name: str) -> str:
    return (resources.files("depl0.app.reports") / "page" / name).read_text(encoding="utf-8")


def _section(run: Run) -> dict[str, Any]:
    """Return the values of the page of one run."""
    return {
        "run": run,
        "recipe": write_recipe(run.recipe),
        "headline": tables.headline(run),
        "structure": figures.structure(run),
        "numbered": len(run.layers) > figures.NAMED,
        "stages": tables.stages(run),
        "results": tables.dense_to_compact(run),
        "changed": _changed(run.answers),
        "curves": figures.drawings(run),
        "usage": _usage(run),
        "widths": figures.widths(run),
        "classes": tables.classes(run),
        "layers": tables.layers(run),
        "unprunable": tables.unprunable(run),
        "provenance": tables.provenance(run),
    }


def _what(run: Run) -> str:
    gates = run.recipe.gates
    asked = f"λ = {run.recipe.penalty.weight}"
    if gates.budget is not None:
        asked = f"budget {fraction(gates.budget)} of the {COSTS[gates.of]}"
    return f"{run.get('model')} on {run.get('data')}, {run.method}, {asked}"


def _usage(run: Run) -> str:
    """Return the code that loads the pruned model, and the commands that evaluate and export it."""
    folder = run.path.as_posix()
    return (
        "import depl0\n\n"
        f"# make_model() builds the original model: {run.get('model')}\n"
        f'model = depl0.load("{folder}/compact", make_model).eval()\n\n'
        f"# depl0 eval {folder}\n"
        f"# depl0 export {folder} --to onnx\n"
    )


def _changed(answers: dict[str, Any]) -> str:
    if answers.get("changed") is None or not answers.get("images"):
        return ""
    changed, images = answers["changed"], answers["images"]
    return (
        f"{changed:,.0f} of {images:,.0f} {answers.get('split', '')} images ({fraction(changed / images)}) "
        "have another prediction than before pruning."
    )
