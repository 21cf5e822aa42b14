"""The picture of a sweep: the metric against the share of the cost that is left."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from depl0.app.studies.picture import label_axes, write_picture
from depl0.app.tasks import Metric, metric_in

ON_FRONTIER, BESIDE, DENSE = "#1b7837", "#b2abd2", "#2166ac"
_OFFSETS = [(0, 9), (0, -19), (0, 22), (0, -32), (34, 12), (-34, 12), (34, -22), (-34, -22), (0, 36), (0, -46), (0, 50)]
"""Where a label may stand, in points from its marker; the first that is free is taken."""


def draw_frontier(result: dict[str, Any], folder: Path) -> None:
    """Write ``frontier.png`` and ``frontier.svg``; nothing, while no member is finished."""
    metric = metric_in(result)
    name = metric.name
    finished = sorted((m for m in result["members"] if m[name] is not None), key=lambda m: m["cost_left"])
    if not finished:
        return
    figure = Figure(figsize=(7.0, 4.6), dpi=150, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    best = [(m["cost_left"], m[name]) for m in finished if m["on_frontier"]]
    dense = [] if result[f"dense_{name}"] is None else [(1.0, result[f"dense_{name}"])]
    # The line ends in the dense network only where that is on the frontier.
    line = best + [point for point in dense if all(metric.better(point[1], y) for _, y in best)]
    axes.plot(*zip(*line, strict=True), color=ON_FRONTIER, linewidth=1.2, alpha=0.6, zorder=1)
    axes.plot(*zip(*best, strict=True), "o", color=ON_FRONTIER, label="on the frontier")
    beside = [(m["cost_left"], m[name]) for m in finished if not m["on_frontier"]]
    if beside:
        axes.plot(*zip(*beside, strict=True), "o", color=BESIDE, label="another budget is better")
    if dense:
        axes.plot(*dense[0], "D", color=DENSE, label="dense")
    label_axes(axes, result)
    axes.margins(x=0.10)
    _set_height(axes, metric, [m[name] for m in finished] + [y for _, y in dense])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    labels = [(m["cost_left"], m[name], f"{m['budget']:g}: {metric.show(m[name])}") for m in finished]
    labels += [(x, y, f"dense: {metric.show(y)}") for x, y in dense]
    _place_labels(canvas, axes, labels, line)
    write_picture(figure, folder, "frontier")


def _set_height(axes: Axes, metric: Metric, values: list[float]) -> None:
    """Leave room for labels, however close the values are; none is above 100 %."""
    low, high = min(values), max(values)
    percent = metric.unit == "%"
    room = max(0.3 * (high - low), 0.2 if percent else 0.02 * max(abs(low), abs(high), 1e-12))
    axes.set_ylim(low - room, high + room)
    top = min(high + room, 100.0) if percent else high + room
    axes.set_yticks([tick for tick in axes.get_yticks() if low - room <= tick <= top])


def _place_labels(
    canvas: FigureCanvasAgg, axes: Axes, labels: list[tuple[float, float, str]], line: list[tuple[float, float]]
) -> None:
    """Put every label where it covers no other, no marker and, if there is room, no line."""
    canvas.draw()
    to_pixels = axes.transData.transform
    scale = axes.figure.dpi / 72
    taken = [_box(to_pixels((x, y)), 5 * scale) for x, y, _ in labels]
    on_line = [
        _box(to_pixels((a[0] + t / 60 * (b[0] - a[0]), a[1] + t / 60 * (b[1] - a[1]))), 1.0)
        for a, b in pairwise(line)
        for t in range(61)
    ]
    inside = axes.get_window_extent()
    for x, y, words in labels:
        text = axes.annotate(words, (x, y), xytext=_OFFSETS[0], textcoords="offset points", ha="center", fontsize=8.5)
        places = {}
        for offset in _OFFSETS:
            text.set_position(offset)
            places[offset] = text.get_window_extent(canvas.get_renderer()).padded(1.5 * scale)
        fits = [o for o, box in places.items() if _within(box, inside) and not _meets(box, taken)] or [_OFFSETS[0]]
        chosen = next((o for o in fits if not _meets(places[o], on_line)), fits[0])
        text.set_position(chosen)
        taken.append(places[chosen])


def _box(centre: Any, radius: float) -> Bbox:
    x, y = centre
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def _meets(box: Bbox, others: list[Bbox]) -> bool:
    return any(box.overlaps(other) for other in others)


def _within(box: Bbox, outer: Bbox) -> bool:
    return bool(box.x0 >= outer.x0 and box.x1 <= outer.x1 and box.y0 >= outer.y0 and box.y1 <= outer.y1)
