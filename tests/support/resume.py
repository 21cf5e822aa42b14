"""What two runs must have in common to be the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def what_matters(folder: Path) -> tuple[list[dict[str, Any]], str, dict[str, Any], bytes]:
    """Metrics, gates, summary and weights, without what a clock said."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    summary, gates = json.loads((folder / "summary.json").read_text()), folder / "gates.jsonl"
    summary.pop("seconds")
    summary.pop("speedup")
    for size in ("dense", "compact"):
        summary[size].pop("latency_ms")
        summary[size].pop("latency_ms_32")
    return (
        lines,
        gates.read_text() if gates.exists() else "",  # methods without learned gates have none
        summary,
        (folder / "compact" / "compact.safetensors").read_bytes(),
    )
