"""The table at the end of ``depl0 prune``, and what other commands say of runs with another metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from depl0.app.cli.result import result_table
from tests.support.summaries import a_summary

pytestmark = pytest.mark.usefixtures("remembered_plans")


def first_row(summary: dict[str, Any]) -> str:
    whole = {
        "speedup": {"1": {"ratio": 1.0, "low": 0.9, "high": 1.1}},
        **summary,
        "certificate": {"max_error": 0.0, "dtype": "float64"},
    }
    for network in ("dense", "compact"):
        whole[network] = {**whole[network], "latency_ms": 1.0}
    return " ".join(result_table(whole, Path("run")).splitlines()[1].split())


def test_another_metric() -> None:
    summary = a_summary(0, 0.5)
    summary |= {
        "metric": {"name": "rmse", "unit": "mm", "higher_is_better": False},
        "dense": {"rmse": 0.5, "macs": 10, "params": 10},
        "compact": {"rmse": 0.4375, "macs": 5, "params": 5},
    }
    assert first_row(summary) == "RMSE 0.5 mm 0.4375 mm -0.0625 mm"


def latency_row(low: float, ratio: float, high: float) -> str:
    summary = {**a_summary(90.0, 0.5), "certificate": {"max_error": 0.0, "dtype": "float64"}}
    for network in ("dense", "compact"):
        summary[network] = {**summary[network], "latency_ms": 1.0}
    summary["speedup"] = {"1": {"ratio": ratio, "low": low, "high": high}}
    return " ".join(result_table(summary, Path("run")).splitlines()[4].split())


def test_latency_with_its_uncertainty() -> None:
    assert latency_row(1.5, 1.58, 1.7) == "latency, batch 1 1.00 ms 1.00 ms 1.58x as fast (1.50 to 1.70)"
    assert latency_row(0.8, 0.9, 0.95).endswith("0.90x as fast (0.80 to 0.95)")
    assert latency_row(0.9, 1.36, 1.9).endswith("1.00 ms no measurable difference (0.90 to 1.90)")
    assert latency_row(1.001, 1.005, 1.01).endswith("no measurable difference (1.00 to 1.01)")
