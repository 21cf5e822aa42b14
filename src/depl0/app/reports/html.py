"""The report as one self-contained HTML file. It makes no requests, and all names are escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from depl0 import __version__
from depl0.app.reports import answers, curves, layers, results
from depl0.app.reports.canvas import inline_svg
from depl0.app.reports.run import DETAILED, GateHistory, Run, dig
from depl0.app.reports.show import change, count, milliseconds, share, short
from depl0.app.reports.study import StudyPart
from depl0.app.table import MISSING, Table, shown

_STEPS = 200
"""open probabilities are stored in the page as bytes, in half percents"""


@dataclass(frozen=True)
class Figure:
    """One number: its title, its value on the compact network, and the comparison with the dense network."""

    title: str
    value: str
    note: str


@dataclass(frozen=True)
class Block:
    """One part of a run's page."""

    title: str
    text: str = ""
    table: Table | None = None
    """sortable; a table without rows is left out"""
    note: str = ""
    """explanation of missing parts"""


@dataclass(frozen=True)
class Section:
    """The part of the page for one run."""

    id: str
    run: Run
    lead: str
    headline: list[Figure]
    structure: Markup | None
    structure_width: int
    numbered: bool
    stages: Table
    results: Table
    examples: list[answers.Example]
    changed: str
    """number of changed predictions"""
    curves: list[Markup]
    details: list[Markup]
    """curves that explain the search"""
    search: Table
    usage: str
    """code to load, evaluate and export the pruned model"""
    heat: dict[str, Any] | None
    blocks: list[Block]
    provenance: Table


def page(runs: Sequence[Run], study: StudyPart | None = None) -> str:
    """Return the text of ``report.html``."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    script = _own("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    top = layers.tallest(runs[:DETAILED])
    single = f"Pruning report: {runs[0].label}" if len(runs) == 1 else f"Pruning report: {len(runs)} runs"
    title = single if study is None else f"Study: {study.title}"
    text: str = environment.from_string(_own("report.html")).render(
        title=title,
        lead=_lead(runs),
        study=study,
        sections=[_section(run, place, top) for place, run in enumerate(runs[:DETAILED], start=1)],
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


def _section(run: Run, place: int, top: int | None) -> Section:
    prefix, found_answers = f"run{place}", answers.read_answers(run)
    found = run.layers
    drawn = None
    if found:
        label = f"Filters and prune ratio of {len(found)} layers of {run.label}"

        def draw(axes: Axes) -> None:
            layers.draw_structure(axes, found, "", top)

        size = layers.width(found), layers.height(found)
        drawn = Markup(inline_svg(draw, *size, f"{prefix}-structure", label))
    return Section(
        id=prefix,
        run=run,
        lead=_what(run),
        headline=headline(run),
        structure=drawn,
        structure_width=round(72 * layers.width(found)),
        numbered=len(found) > layers.NAMED,
        stages=answers.stages(run),
        results=results.dense_to_compact(run),
        examples=answers.examples(found_answers) if found_answers is not None else [],
        changed=_changed(found_answers),
        curves=_curves(run, prefix, details=False),
        details=_curves(run, prefix, details=True),
        search=results.search_facts(run),
        usage=usage(run),
        heat=_heat(run.gates) if run.gates is not None else None,
        blocks=[*_classes(run, found_answers), _layers(run), _unprunable(run)],
        provenance=results.provenance(run),
    )


def _what(run: Run) -> str:
    gates = run.recipe.get("gates", {})
    model, data = (run.get(key) or dig(run.recipe, key, "spec") for key in ("model", "data"))
    if gates.get("budget") is not None:
        asked = f"budget {share(gates['budget'])} of the {'parameters' if gates.get('of') == 'params' else 'MACs'}"
    else:
        asked = f"λ = {dig(run.recipe, 'penalty', 'weight') or '?'}"
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


def _curves(run: Run, prefix: str, *, details: bool) -> list[Markup]:
    made = []
    for panel in (panel for panel in curves.panels(run) if panel.is_detail == details):

        def draw(axes: Axes, panel: curves.Panel = panel) -> None:
            curves.draw(axes, run, panel)

        label = f"{panel.title(run)} of {run.label} by epoch"
        made.append(Markup(inline_svg(draw, curves.WIDTH, curves.HEIGHT, f"{prefix}-{panel.name}", label)))
    return made


# -- headline ------------------------------------------------------------------------------------------------------


def headline(run: Run) -> list[Figure]:
    """Return the four numbers; for an unfinished run, the latest recorded ones."""
    return [_metric(run), _cost(run, "macs", "MACs"), _cost(run, "params", "Parameters"), _latency(run)]


def _metric(run: Run) -> Figure:
    metric, dense, compact = run.metric, run.value("dense"), run.value("compact")
    title = metric.title if metric.higher_is_better else f"{metric.title} ({metric.direction})"
    if compact is None:
        latest = [line[f"test_{metric.name}"] for line in run.epochs if line.get(f"test_{metric.name}") is not None]
        return Figure(title, metric.show(latest[-1]) if latest else MISSING, "so far" if latest else "not known yet")
    if dense is None:
        return Figure(title, metric.show(compact), "dense network not evaluated")
    unit = " points" if metric.unit == "%" else f" {metric.unit}".rstrip()
    return Figure(title, metric.show(compact), f"dense {metric.show(dense)}, {change(metric, compact - dense)}{unit}")


def _cost(run: Run, key: str, title: str) -> Figure:
    dense, compact = run.get("dense", key), run.get("compact", key)
    if compact is None:
        latest = [left for line in run.epochs if (left := dig(line, "kept", f"{key}_share")) is not None]
        return Figure(title, share(latest[-1]) if latest else MISSING, "left so far" if latest else "not known yet")
    return Figure(title, short(compact), f"dense {short(dense)}, {share(compact / dense)} left" if dense else "")


def _latency(run: Run) -> Figure:
    dense, compact = run.get("dense", "latency_ms"), run.get("compact", "latency_ms")
    if compact is None:
        return Figure("Latency", MISSING, "not measured" if run.is_finished else "not known yet")
    compared = results.faster(run)
    note = f"dense {milliseconds(dense)}, {compared}" if compared else ""
    return Figure("Latency, batch 1", milliseconds(compact), note)


# -- blocks --------------------------------------------------------------------------------------------------------


def _classes(run: Run, found: dict[str, Any] | None) -> list[Block]:
    if found is None:
        return []
    text = f"Accuracy on the {found['split']} images of each class."
    return [Block("Every class", text, answers.classes(run, found))]


def _changed(found: dict[str, Any] | None) -> str:
    if found is None or found.get("changed") is None or not found["images"]:
        return ""
    return (
        f"{count(found['changed'])} of {count(found['images'])} {found['split']} images "
        f"({share(found['changed'] / found['images'])}) have another answer than before pruning."
    )


def _layers(run: Run) -> Block:
    table = results.layers(run)
    errors = (
        "Error: of a layer's outputs, squared, relative to their variance; at the cut, and after the layer was fitted "
        "to what it still reads. 1 is as bad as the mean alone."
    )
    has_errors = any(row["error"] is not None for row in table.rows)
    note = "" if table.rows else "Not known until the run has finished."
    return Block("Layers", errors if has_errors else "", table, note)


def _unprunable(run: Run) -> Block:
    table = results.unprunable(run)
    if table.rows:
        return Block("Channels that cannot be pruned, and why", table=table)
    if run.is_finished:
        return Block("Channels that cannot be pruned", text="None: every channel had a gate.")
    return Block("Channels that cannot be pruned", note="Not known until the run has finished.")


# -- heat map --------------------------------------------------------------------------------------------------------


def _heat(history: GateHistory) -> dict[str, Any]:
    """Return the history for the page's script: one byte per gate and epoch, and the colour of every byte."""
    groups = []
    for name, matrix in history.groups.items():
        steps = np.clip(np.rint(matrix * _STEPS), 0, _STEPS).astype(np.uint8)
        groups.append({"name": name, "values": base64.b64encode(steps.tobytes()).decode()})
    return {"epochs": history.epochs, "groups": groups, "colours": _colours()}


def _colours() -> list[int]:
    """Return the colour of every step as a pixel of a canvas: alpha, blue, green, red."""
    rgb = (mpl.colormaps[layers.COLOURS](np.linspace(0, 1, _STEPS + 1))[:, :3] * 255).round().astype(int)
    return [int((255 << 24) | (b << 16) | (g << 8) | r) for r, g, b in rgb]


def _ramp() -> str:
    return ", ".join(mpl.colors.to_hex(c) for c in mpl.colormaps[layers.COLOURS](np.linspace(0, 1, 7)))
