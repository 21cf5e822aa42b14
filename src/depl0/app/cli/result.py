"""The result table of ``depl0 prune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from depl0.app.table import aligned
from depl0.app.tasks import Metric, metric_in
from depl0.latency import Speedup
from depl0.surgery.record import Agreement

Row: TypeAlias = tuple[str, str, str, str]


def result_table(summary: dict[str, Any], folder: Path) -> str:
    """Return the table that compares the dense and the compact network and lists the paths of the files."""
    dense, compact, metric = summary["dense"], summary["compact"], metric_in(summary)
    rows = [
        ("", "dense", "compact", ""),
        *_metric_rows(metric, summary),
        ("MACs", f"{dense['macs']:,}", f"{compact['macs']:,}", f"{compact['macs'] / dense['macs']:.1%} left"),
        (
            "parameters",
            f"{dense['params']:,}",
            f"{compact['params']:,}",
            f"{compact['params'] / dense['params']:.1%} left",
        ),
        (
            "latency, batch 1",
            f"{dense['latency_ms']:.2f} ms",
            f"{compact['latency_ms']:.2f} ms",
            Speedup(**summary["speedup"]["1"]).in_words(),
        ),
    ]
    lines = aligned(rows, [False, True, True, False])
    error = summary["certificate"]["max_error"]
    lines.append(f"compact network = gated network: largest difference {error:.1e} ({summary['certificate']['dtype']})")
    lines += [f"not verified: {what}" for what in summary["certificate"].get("refused", ())]
    if summary.get("agreement") is not None:
        lines.append(f"compact network ~ dense network: {Agreement(**summary['agreement'])}")
    lines.append(f"{summary['seconds']:.0f} s in all; files in {folder}")
    lines.append(f"look at it:  depl0 report {folder}")
    lines.append(f"use it:      depl0 export {folder} --to onnx")
    return "\n".join(lines)


def closing_line(summary: dict[str, Any], folder: Path) -> str:
    """Return the result in a line: cost, metric, speed and folder."""
    dense, compact, metric = summary["dense"], summary["compact"], metric_in(summary)
    parts = [f"{dense['macs'] / max(compact['macs'], 1):.1f}× fewer MACs"]
    if dense[metric.name] is not None:
        parts.append(metric.difference(dense[metric.name], compact[metric.name]).replace("-", "−"))
    speedup = Speedup(**summary["speedup"]["1"])
    if speedup.is_measurable and speedup.ratio > 1:
        parts.append(f"{speedup.ratio:.1f}× faster")
    return " · ".join([*parts, f"saved to {folder}"])


def _metric_rows(metric: Metric, summary: dict[str, Any]) -> list[Row]:
    """Return the metric of both networks; if images were held out for choices, on these and on the test images."""
    held_out = summary.get("validation")
    parts = {metric.label: summary}
    if held_out is not None:
        parts = {f"validation {metric.label}": held_out, f"test {metric.label}": summary}
    return [
        _metric_row(metric, label, part["dense"][metric.name], part["compact"][metric.name])
        for label, part in parts.items()
    ]


def _metric_row(metric: Metric, label: str, dense: float | None, compact: float) -> Row:
    if dense is None:
        return label, "not trained", metric.show(compact), ""
    return label, metric.show(dense), metric.show(compact), metric.difference(dense, compact)
