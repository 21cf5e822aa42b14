"""The report as one self-contained HTML file: no request leaves it, and no name in it can become markup."""

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
from depl0.app.reports import results
from depl0.app.reports.blocks import Block, blocks
from depl0.app.reports.figures import curves, structure
from depl0.app.reports.figures.canvas import inline_svg
from depl0.app.reports.figures.heat import COLOURS
from depl0.app.reports.gates import GateHistory
from depl0.app.reports.headline import Figure, headline
from depl0.app.reports.run import DETAILED, Run, dig
from depl0.app.reports.show import share
from depl0.app.table import Table, shown

_STEPS = 200
"""open probabilities come to the page as bytes, in half percents"""


@dataclass(frozen=True)
class Section:
    """What the page shows of one run."""

    id: str
    run: Run
    lead: str
    headline: list[Figure]
    structure: Markup | None
    structure_width: int
    numbered: bool
    results: Table
    curves: list[Markup]
    heat: dict[str, Any] | None
    blocks: list[Block]
    provenance: Table


def page(runs: Sequence[Run]) -> str:
    """Return the text of ``report.html``."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    script = _own("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    top = structure.tallest(runs[:DETAILED])
    title = f"Pruning report: {runs[0].label}" if len(runs) == 1 else f"Pruning report: {len(runs)} runs"
    text: str = environment.from_string(_own("report.html")).render(
        title=title,
        lead=_lead(runs),
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
    prefix = f"run{place}"
    layers = run.layers
    drawn = None
    if layers:
        label = f"Filters and prune ratio of {len(layers)} layers of {run.label}"

        def draw(axes: Axes) -> None:
            structure.draw(axes, layers, "", top)

        size = structure.width(layers), structure.height(layers)
        drawn = Markup(inline_svg(draw, *size, f"{prefix}-structure", label))
    return Section(
        id=prefix,
        run=run,
        lead=_what(run),
        headline=headline(run),
        structure=drawn,
        structure_width=round(72 * structure.width(layers)),
        numbered=len(layers) > structure.NAMED,
        results=results.dense_to_compact(run),
        curves=_curves(run, prefix),
        heat=_heat(run.gates) if run.gates is not None else None,
        blocks=blocks(run, prefix),
        provenance=results.provenance(run),
    )


def _what(run: Run) -> str:
    target = run.recipe.get("target", {})
    model, data = (run.get(key) or dig(run.recipe, key, "spec") for key in ("model", "data"))
    if target.get("budget") is not None:
        asked = f"budget {share(target['budget'])} of the {'parameters' if target.get('of') == 'params' else 'MACs'}"
    else:
        asked = f"λ = {target.get('penalty_weight', '?')}"
    return f"{model} on {data}, {run.method}, {asked}"


def _curves(run: Run, prefix: str) -> list[Markup]:
    made = []
    for panel in curves.panels(run):

        def draw(axes: Axes, panel: curves.Panel = panel) -> None:
            curves.draw(axes, run, panel)

        label = f"{panel.title(run)} of {run.label} by epoch"
        made.append(Markup(inline_svg(draw, curves.WIDTH, curves.HEIGHT, f"{prefix}-{panel.name}", label)))
    return made


# -- heat map --------------------------------------------------------------------------------------------------------


def _heat(history: GateHistory) -> dict[str, Any]:
    """Return the history for the page's script: a byte a gate and epoch, and the colour of every byte."""
    groups = []
    for name, matrix in history.groups.items():
        steps = np.clip(np.rint(matrix * _STEPS), 0, _STEPS).astype(np.uint8)
        groups.append({"name": name, "values": base64.b64encode(steps.tobytes()).decode()})
    return {"epochs": history.epochs, "groups": groups, "colours": _colours()}


def _colours() -> list[int]:
    """Return the colour of every step as a pixel of a canvas: alpha, blue, green, red."""
    rgb = (mpl.colormaps[COLOURS](np.linspace(0, 1, _STEPS + 1))[:, :3] * 255).round().astype(int)
    return [int((255 << 24) | (b << 16) | (g << 8) | r) for r, g, b in rgb]


def _ramp() -> str:
    return ", ".join(mpl.colors.to_hex(c) for c in mpl.colormaps[COLOURS](np.linspace(0, 1, 7)))
