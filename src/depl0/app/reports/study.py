"""A study on the report's page: its tables, its curves with intervals over seeds, and links to its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depl0.app.reports import curves
from depl0.app.reports.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, inline_svg, new_figure, style, write
from depl0.app.reports.run import Run
from depl0.app.table import Table

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, GREY)
SIZE = 7.0, 4.0


@dataclass(frozen=True)
class StudyPart:
    """The part of the page for a study, above its runs."""

    title: str
    tables: tuple[Table, ...]
    figures: tuple[Markup, ...]
    links: tuple[tuple[str, str], ...]
    """name of each run, and its address relative to the study's folder"""


def study_part(title: str, tables: Sequence[Table], groups: Mapping[str, Sequence[Run]], folder: Path) -> StudyPart:
    """Return the study's part of the page; ``groups`` are its runs, grouped over seeds. Also writes its figure."""
    links = []
    for run in (run for runs in groups.values() for run in runs):
        address = run.path.relative_to(folder).as_posix()
        page = "report.html" if (run.path / "report.html").is_file() else ""
        links.append((address, f"{address}/{page}"))
    figures: tuple[Markup, ...] = ()
    if any(series for runs in groups.values() for run in runs for series in curves.series(run, _judged(run))):

        def draw(axes: Axes) -> None:
            draw_curves(axes, groups)

        figures = (Markup(inline_svg(draw, *SIZE, "study-curves", "Metric by epoch, mean and range over seeds")),)
        with style():
            write(_figure(groups), folder / "figures", "curves")
    return StudyPart(title, tuple(table for table in tables if table.rows), figures, tuple(links))


def _figure(groups: Mapping[str, Sequence[Run]]) -> Figure:
    figure = new_figure(*SIZE)
    draw_curves(figure.subplots(), groups)
    return figure


def draw_curves(axes: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw the metric by epoch: the mean of each group as a line, the range over its seeds shaded."""
    for place, (name, runs) in enumerate(groups.items()):
        found = [curves.series(run, _judged(run)) for run in runs]
        length = min((len(epochs) for epochs, _ in found if epochs), default=0)
        if not length:
            continue
        epochs = next(xs for xs, _ in found if xs)[:length]
        values = np.array([ys[:length] for _, ys in found if ys])
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(epochs, values.mean(0), color=colour, label=f"{name} (n = {len(values)})")
        if len(values) > 1:
            axes.fill_between(epochs, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    first = next(run for runs in groups.values() for run in runs)
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"{first.split} {first.metric.label}" + (f", {first.metric.unit}" if first.metric.unit else ""))
    axes.legend(loc="best")


def _judged(run: Run) -> str:
    return f"{run.split}_{run.metric.name}"
