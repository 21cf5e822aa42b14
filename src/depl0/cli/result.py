"""What ``depl0 prune`` prints at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depl0._table import aligned


def result_table(summary: dict[str, Any], folder: Path) -> str:
    """Return the table dense → compact, and where the files are."""
    dense, compact = summary["dense"], summary["compact"]
    rows = [
        ("", "dense", "compact", ""),
        ("accuracy", _percent(dense["accuracy"]), _percent(compact["accuracy"]), _points(dense, compact)),
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
    return "\n".join(lines)


def _percent(accuracy: float | None) -> str:
    return "not trained" if accuracy is None else f"{accuracy:.2f} %"


def _points(dense: dict[str, Any], compact: dict[str, Any]) -> str:
    if dense["accuracy"] is None:
        return ""
    return f"{compact['accuracy'] - dense['accuracy']:+.2f} points"
