"""Convert drawings to files or to an SVG inside a page, without a display and without changing global state."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from depl0._util.io import atomic_write

INK, GRID = "#1f2328", "#d5dae0"
GREY, GREEN, RED = "#b4bac1", "#009e73", "#d1300f"
BLUE, ORANGE, PURPLE, SKY = "#0072b2", "#e08a00", "#a0508c", "#3f9fd8"
"""Okabe and Ito's palette, distinguishable with any kind of colour vision"""

_OF_THE_PAGE = {
    INK: "currentColor", GRID: "var(--grid)", BLUE: "var(--blue)", PURPLE: "var(--purple)", RED: "var(--red)"
}  # fmt: skip
"""colours that the page replaces by its own, which are lighter on a dark background"""

_STYLE: Any = {
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "text.parse_math": False,  # a layer may be named $x$
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "depl0",
    "savefig.dpi": 150,
}

_METADATA: dict[str, Any] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""file types of a figure, without metadata that would differ between two equal figures"""


@contextmanager
def style() -> Iterator[None]:
    """Apply the style of the reports within the context."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        for known in ("constrained_layout not applied", "Glyph"):  # very long names, unknown characters
            warnings.filterwarnings("ignore", known, UserWarning)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches that is not attached to a window."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def write(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, SVG and PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in _METADATA]
    for path, metadata in zip(paths, _METADATA.values(), strict=True):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        atomic_write(path, buffer.getvalue())
    return paths


@dataclass(frozen=True)
class Drawing:
    """A drawing that is embedded in the page and written to files."""

    name: str
    label: str
    """description for screen readers"""
    width: float
    """inches"""
    height: float
    draw: Callable[[Axes], None]

    def figure(self) -> Figure:
        """Return the drawing as a figure."""
        made = new_figure(self.width, self.height)
        self.draw(made.subplots())
        return made

    def svg(self) -> Markup:
        """Return an SVG element that takes its colours from the page around it, with ids that are unique in it."""
        with style():
            buffer = io.StringIO()
            self.figure().savefig(buffer, format="svg", transparent=True, metadata=_METADATA["svg"])
        text = buffer.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = re.sub(r'(href="#|url\(#)', rf"\g<1>{self.name}-", text)
        for colour, name in _OF_THE_PAGE.items():
            text = text.replace(colour, name)
        return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(self.label)}" ', 1))
