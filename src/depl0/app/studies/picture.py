"""What the pictures of studies share."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from depl0._util.io import write_whole
from depl0.app.studies.publish import Result
from depl0.app.tasks import Metric, metric_in
from depl0.gates.threshold import COSTS


def label_axes(axes: Axes, result: Result) -> None:
    """Say what is drawn: a metric against the share of the cost that is left."""
    axes.set_title(f"{result['recipe']}: {result['model']} on {result['data'].partition(':')[0]}")
    axes.set_xlabel(f"share of the {COSTS[result['of']]} left")
    axes.set_ylabel(axis_title(metric_in(result)))
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def axis_title(metric: Metric) -> str:
    """Say what is drawn, and which way is better where that is not up."""
    remarks = [metric.unit] * bool(metric.unit) + [metric.direction] * (not metric.higher_is_better)
    return f"test {metric.label}" + (f" ({', '.join(remarks)})" if remarks else "")


def write_picture(figure: Figure, folder: Path, name: str) -> None:
    """Write a picture as PNG and SVG, the same bytes for the same numbers."""
    with matplotlib.rc_context({"svg.hashsalt": "depl0"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            write_whole(folder / f"{name}.{kind}", buffer.getvalue())
