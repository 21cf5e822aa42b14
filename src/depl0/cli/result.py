"""What ``depl0 prune`` prints at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depl0._table import aligned
from depl0.tasks import Metric, metric_in


def result_table(summary: dict[str, Any], folder: Path) -> str:
    """Return the table dense → compact, and where the files are."""
    dense, compact, metric = summary["dense"], summary["compact"], metric_in(summary)
    rows = [
        ("", "dense", "compact", ""),
        _metric_row(metric, dense[metric.name], compact[metric.name]),
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
            f"{dense['latency_ms'] / compact['latency_ms']:.2f}x as fast",
        ),
    ]
    lines = aligned(rows, [False, True, True, False])
    error = summary["certificate"]["max_error"]
    lines.append(f"compact network = gated network: largest difference {error:.1e} ({summary['certificate']['dtype']})")
    lines.append(f"{summary['seconds']:.0f} s in all; files in {folder}")
    lines.append(f"look at it:  depl0 report {folder}")
    lines.append(f"use it:      depl0 export {folder} --to onnx")
    return "\n".join(lines)


def _metric_row(metric: Metric, dense: float | None, compact: float) -> tuple[str, str, str, str]:
    if dense is None:
        return metric.label, "not trained", metric.show(compact), ""
    return metric.label, metric.show(dense), metric.show(compact), metric.difference(dense, compact)
