"""The report as one self-contained HTML file. It makes no requests, and all names are escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import jinja2
import matplotlib as mpl
import numpy as np
from markupsafe import Markup

from depl0 import __version__
from depl0.app.reports import curves, layers, results
from depl0.app.reports.canvas import Drawing
from depl0.app.reports.run import DETAILED, GateHistory, Run, dig
from depl0.app.reports.show import change, count, fraction, milliseconds, short
from depl0.app.table import MISSING, Table, shown

_STEPS = 200
"""open probabilities are stored in the page as bytes, in half percents"""


class Figure(NamedTuple):
    """One number: its title, its value on the compact network, and the comparison with the dense network."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class StudyPart:
    """The part of the page for a study, above its runs."""

    title: str
    tables: tuple[Table, ...]
    drawings: tuple[Drawing, ...]
    links: tuple[tuple[str, str], ...]
    """name of each run, and its address relative to the study's folder"""


def page(runs: Sequence[Run], study: StudyPart | None = None) -> str:
    """Return the text of ``report.html``."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    script = _own("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    top = layers.tallest(runs[:DETAILED])
    title = f"Pruning report: {runs[0].label if len(runs) == 1 else f'{len(runs)} runs'}"
    text: str = environment.from_string(_own("report.html")).render(
        title=title if study is None else f"Study: {study.title}",
        lead=_lead(runs),
        study=study,
        sections=[_section(run, f"run{place}", top) for place, run in enumerate(runs[:DETAILED], start=1)],
        all_runs=results.all_runs(runs),
        css=Markup(_own("report.css").replace("{{ ramp }}", _ramp())),
        js=Markup(script),
        script_hash=f"sha256-{digest}",
        version=__version__,
        cell=shown,
    )
    return text


def _own(name: str) -> str:
    return resources.files("depl0.app.reports").joinpath("page", name).read_text(encoding="utf-8")


def _lead(runs: Sequence[Run]) -> str:
    if len(runs) == 1:
        return _what(runs[0])
    if len(runs) > DETAILED:
        return f"All {len(runs)} runs in one table, and the first {DETAILED} in detail."
    return "All runs in one table, then each run in detail."


def _section(run: Run, name: str, top: int | None) -> dict[str, Any]:
    """Return the values of the page's part for one run."""
    drawings = curves.drawings(run)
    return {
        "id": name,
        "run": run,
        "lead": _what(run),
        "headline": headline(run),
        "structure": layers.structure(run, top),
        "numbered": len(run.layers) > layers.NAMED,
        "stages": results.stages(run),
        "results": results.dense_to_compact(run),
        "examples": results.examples(run),
        "changed": _changed(run.answers),
        "curves": [drawing for drawing in drawings if not drawing.is_detail],
        "details": [drawing for drawing in drawings if drawing.is_detail],
        "search": results.search_facts(run),
        "usage": usage(run),
        "heat": _heat(run.gates) if run.gates is not None else None,
        "classes": results.classes(run),
        "layers": results.layers(run),
        "unprunable": results.unprunable(run),
        "provenance": results.provenance(run),
    }


def _what(run: Run) -> str:
    gates = run.recipe.get("gates", {})
    model, data = (run.get(key) or dig(run.recipe, key, "spec") for key in ("model", "data"))
    asked = f"λ = {dig(run.recipe, 'penalty', 'weight') or '?'}"
    if gates.get("budget") is not None:
        asked = f"budget {fraction(gates['budget'])} of the {'parameters' if gates.get('of') == 'params' else 'MACs'}"
    return f"{model} on {data}, {run.method}, {asked}"


def usage(run: Run) -> str:
    """Return the code that loads the pruned model, and the commands that evaluate and export it."""
    model = run.get("model") or dig(run.recipe, "model", "spec")
    folder = run.path.as_posix()
    return (
        "import depl0\n\n"
        f"# make_model() builds the original model: {model}\n"
        f'model = depl0.load("{folder}/compact", make_model).eval()\n\n'
        f"# depl0 eval {folder}\n"
        f"# depl0 export {folder} --to onnx\n"
    )


def _changed(answers: dict[str, Any]) -> str:
    if answers.get("changed") is None or not answers.get("images"):
        return ""
    changed, images = answers["changed"], answers["images"]
    return (
        f"{count(changed)} of {count(images)} {answers.get('split', '')} images ({fraction(changed / images)}) "
        "have another answer than before pruning."
    )


# -- headline ----------------------------------------------------------------------------------------------------------


def headline(run: Run) -> list[Figure]:
    """Return the four numbers; for an unfinished run, the latest recorded ones."""
    return [_metric(run), _cost(run, "macs", "MACs"), _cost(run, "params", "Parameters"), _latency(run)]


def _metric(run: Run) -> Figure:
    metric, dense, compact = run.metric, run.value("dense"), run.value("compact")
    title = metric.title if metric.higher_is_better else f"{metric.title} ({metric.direction})"
    if compact is None:
        return _latest(run, title, f"test_{metric.name}", metric.show, "so far")
    if dense is None:
        return Figure(title, metric.show(compact), "dense network not evaluated")
    unit = " points" if metric.unit == "%" else f" {metric.unit}".rstrip()
    return Figure(title, metric.show(compact), f"dense {metric.show(dense)}, {change(metric, compact - dense)}{unit}")


def _cost(run: Run, key: str, title: str) -> Figure:
    dense, compact = run.get("dense", key), run.get("compact", key)
    if compact is None:
        return _latest(run, title, f"{key}_share", fraction, "left so far", "kept")
    return Figure(title, short(compact), f"dense {short(dense)}, {fraction(compact / dense)} left" if dense else "")


def _latency(run: Run) -> Figure:
    dense, compact = run.get("dense", "latency_ms"), run.get("compact", "latency_ms")
    if compact is None:
        return Figure("Latency", MISSING, "not measured" if run.is_finished else "not known yet")
    compared = results.faster(run)
    return Figure("Latency, batch 1", milliseconds(compact), f"dense {milliseconds(dense)}, {compared}")


def _latest(run: Run, title: str, key: str, show: Any, note: str, *parents: str) -> Figure:
    found = [value for line in run.epochs if (value := dig(line, *parents, key)) is not None]
    return Figure(title, show(found[-1]), note) if found else Figure(title, MISSING, "not known yet")


# -- heat map ----------------------------------------------------------------------------------------------------------


def _heat(history: GateHistory) -> dict[str, Any]:
    """Return the history for the page's script: one byte per gate and epoch, and the colour of every byte."""
    groups = []
    for name, matrix in history.groups.items():
        steps = np.clip(np.rint(matrix * _STEPS), 0, _STEPS).astype(np.uint8)
        groups.append({"name": name, "values": base64.b64encode(steps.tobytes()).decode()})
    rgb = (mpl.colormaps[layers.COLOURS](np.linspace(0, 1, _STEPS + 1))[:, :3] * 255).round().astype(int)
    pixels = [int((255 << 24) | (b << 16) | (g << 8) | r) for r, g, b in rgb]  # alpha, blue, green, red
    return {"epochs": history.epochs, "groups": groups, "colours": pixels}


def _ramp() -> str:
    return ", ".join(mpl.colors.to_hex(c) for c in mpl.colormaps[layers.COLOURS](np.linspace(0, 1, 7)))
