"""The figure of the claims: score over cost for every kind of runs, where a setting was run with several λ."""

from __future__ import annotations

import io
import statistics
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from depl0.app.reports.canvas import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, new_figure, style
from depl0.paper.claims.runs import CONST, CONTROL, L0_HC, START

_COLOURS = {"dep-l0": BLUE, L0_HC: RED, CONST: ORANGE, START: PURPLE, CONTROL: GREEN, "dep-l0:backward": SKY}
_MARKERS = "osD^vPX*<>dp"
Curves = dict[str, dict[float | None, list[tuple[float, float]]]]
"""(cost, score) of every seed, by kind of runs and λ"""


def curves_of(result: dict[str, Any]) -> dict[str, Curves]:
    """Return the curves of the settings in which a kind of runs has several λ."""
    found: dict[str, Curves] = {}
    for run in result["runs"]:
        of_arm = found.setdefault(run["setting"], {}).setdefault(run["arm"], {})
        of_arm.setdefault(run["weight"], []).append((100 * run["cost"], run["score"]))
    return {name: arms for name, arms in found.items() if any(len(weights) > 1 for weights in arms.values())}


def draw(result: dict[str, Any]) -> bytes:
    """Return an SVG with one panel for each of these settings: every run a dot, their means joined over λ."""
    curves = curves_of(result)
    with style():
        figure = new_figure(8.2, 4.2 * len(curves))
        for axes, (name, arms) in zip(figure.subplots(len(curves), squeeze=False).flat, curves.items(), strict=True):
            _panel(axes, arms)
            axes.set_title(f"{name}: {result['settings'][name]['description'].partition(',')[0]}")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _panel(axes: Axes, arms: Curves) -> None:
    order = [*(arm for arm in _COLOURS if arm in arms), *sorted(arms.keys() - _COLOURS.keys())]
    for arm, marker in zip(order, _MARKERS * len(order), strict=False):
        colour, points = _COLOURS.get(arm, GREY), arms[arm].values()
        every = [point for seeds in points for point in seeds]
        front: dict[str, Any] = {"zorder": 3, "linewidth": 1.8} if arm in _COLOURS else {"zorder": 2, "linewidth": 0.8}
        axes.plot(*zip(*every, strict=True), marker, color=colour, markersize=3.5, alpha=0.5, zorder=front["zorder"])
        means = [tuple(map(statistics.fmean, zip(*seeds, strict=True))) for seeds in points]
        axes.plot(*zip(*sorted(means), strict=True), marker=marker, color=colour, markersize=6, label=arm, **front)
    axes.set_xlabel("MACs left")
    axes.set_ylabel("test score")
    axes.xaxis.set_major_formatter(PercentFormatter(symbol=" %", decimals=0))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
