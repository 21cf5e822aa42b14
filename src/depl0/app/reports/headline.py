"""The four numbers at the top of a run's page: the metric, MACs, parameters and milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from depl0.app.reports.run import Run, dig
from depl0.app.reports.show import change, milliseconds, share, short
from depl0.app.reports.speed import faster
from depl0.app.table import MISSING


@dataclass(frozen=True)
class Figure:
    """One number: what it is, its value on the compact network, and how that compares with the dense one."""

    title: str
    value: str
    note: str


def headline(run: Run) -> list[Figure]:
    """Return the four numbers; of an unfinished run, the latest ones that it has recorded."""
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
    compared = faster(run)
    note = f"dense {milliseconds(dense)}, {compared}" if compared else ""
    return Figure("Latency, batch 1", milliseconds(compact), note)
