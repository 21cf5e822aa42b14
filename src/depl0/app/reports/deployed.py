"""What became of a run afterwards: dense and compact, float and int8, accuracy against milliseconds."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from depl0._util import io
from depl0.app.reports.canvas import BLUE, GREY, inline_svg
from depl0.app.reports.run import Run
from depl0.app.reports.show import milliseconds, size
from depl0.app.runs import schema as content
from depl0.app.table import Column, Table
from depl0.app.tasks import metric_in
from depl0.errors import InputError
from depl0.latency.measure import Speedup

WIDTH, HEIGHT = 5.4, 3.4


class _Variant(content.Fields):
    name: content.Text
    bytes: content.Count
    ms: content.Count
    spread_ms: content.Count
    speedup: content.SpeedupFields


class _Deployed(content.Fields):
    variants: list[_Variant]
    float_layers: list[content.Text] | None = None
    runtime: dict[content.Text, Any] | None = None


_DEPLOYED = content.Check(_Deployed)


def read_deployed(run: Run) -> dict[str, Any] | None:
    """Return what ``deployed.json`` of a run holds; None where there is none."""
    path = run.path / "deployed.json"
    if not path.is_file():
        return None
    try:
        found = io.read_json(path)
        content.shallow(found)
        _DEPLOYED(found, "")
    except (OSError, ValueError, RecursionError, content.Wrong) as error:
        raise InputError(f"{path} is damaged: {error}.", hint="remove it, and deploy the run again.") from error
    return dict(found)


def table(run: Run, found: dict[str, Any]) -> Table:
    """Return all variants: what each is worth, how large its file is, and how fast it runs."""
    metric = metric_in(found)
    columns = (
        Column("name", "variant"),
        Column("score", metric.label, metric.show, is_number=True),
        Column("bytes", "file size", size, is_number=True),
        Column("ms", "latency, batch 1", milliseconds, is_number=True),
        Column("spread_ms", "±", milliseconds, is_number=True),
        Column("faster", "beside dense float"),
    )
    rows = [
        {**variant, "faster": Speedup(**variant["speedup"]).in_words() if place else None}
        for place, variant in enumerate(found["variants"])
    ]
    return Table(f"{run.label}: deployed", columns, rows, _notes(found))


def figure(run: Run, found: dict[str, Any], prefix: str) -> Markup | None:
    """Draw the metric against milliseconds; None where no variant has a metric."""
    shown = [variant for variant in found["variants"] if isinstance(variant.get("score"), (int, float))]
    if not shown:
        return None
    metric = metric_in(found)

    def draw(axes: Axes) -> None:
        for variant in shown:
            int8 = variant["name"].endswith("int8")
            axes.errorbar(
                variant["ms"],
                variant["score"],
                xerr=variant["spread_ms"],
                fmt="o" if int8 else "s",
                color=BLUE if variant["name"].startswith("compact") else GREY,
                markersize=8,
            )
            place = (variant["ms"], variant["score"])  # float above and int8 below: two that are alike stay readable
            axes.annotate(variant["name"], place, (0, -19 if int8 else 9), textcoords="offset points", ha="center")
        axes.set_xlim(left=0)
        axes.margins(x=0.2, y=0.3)
        axes.set_xlabel("milliseconds, batch 1")
        axes.set_ylabel(f"{metric.label} ({metric.unit})" if metric.unit else metric.label)

    return Markup(inline_svg(draw, WIDTH, HEIGHT, prefix, f"{metric.title} of {run.label} against milliseconds"))


def _notes(found: dict[str, Any]) -> tuple[str, ...]:
    runtime = found.get("runtime") or {}
    notes = [
        f"ONNX Runtime {runtime.get('onnxruntime', '')}, {_threads(runtime)}, "
        f"{runtime.get('clock', '')}; medians of interleaved rounds, ± half of the middle 50 %."
    ]
    if found.get("float_layers"):
        notes.append(f"Left in float, because they lose most: {', '.join(found['float_layers'])}.")
    return tuple(notes)


def _threads(runtime: dict[str, Any]) -> str:
    count = runtime.get("threads", "?")
    where = f" of {runtime['processor']}" if runtime.get("processor") else ""
    return f"{count} thread{'' if count == 1 else 's'}{where}"
