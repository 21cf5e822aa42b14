"""The report's section on what was deployed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from depl0.app.cli.result import deployed_table
from depl0.app.reports import deployed
from depl0.app.reports.html import page
from depl0.app.reports.run import Run
from depl0.errors import InputError

RUNTIME = {"onnxruntime": "1", "threads": 1, "clock": "processor time"}
METRIC = {"name": "accuracy", "unit": "%", "higher_is_better": True}


def variant(name: str, score: float | None, ms: float) -> dict[str, Any]:
    speedup = {"ratio": 2.0 / ms, "low": 1.9 / ms, "high": 2.1 / ms}
    figures = {"ms": ms, "spread_ms": 0.1, "best_ms": ms, "rounds": 9, "speedup": speedup}
    return {"name": name, "score": score, "bytes": 1000, **figures}


def write(run: Run, **changes: Any) -> None:
    variants = [variant("dense, float", None, 2.0), variant("compact, int8", 90.5, 1.0)]
    found = {"metric": METRIC, "variants": variants, "float_layers": ["<conv1>"], **changes}
    (run.path / "deployed.json").write_text(json.dumps(found))


def test_section_shows_all_variants(known: Run) -> None:
    assert "<h3>Deployed</h3>" not in page([known])
    write(known)
    text = page([known])
    section = text[text.index("<h3>Deployed</h3>") : text.index("<h3>Layers</h3>")]
    assert "90.50 %" in section and "dense, float" in section and "&lt;conv1&gt;" in section
    assert "<svg" in section and "milliseconds, batch 1" in section
    write(known, variants=[variant("dense, float", None, 2.0)])  # no accuracy, no picture
    found = deployed.read_deployed(known)
    assert found is not None and deployed.figure(known, found, "x") is None


def test_how_much_faster_with_its_interval(known: Run) -> None:
    dense = {**variant("dense, float", None, 2.0), "speedup": {"ratio": 1.0, "low": 1.0, "high": 1.0}}
    small = {**variant("compact, int8", 90.5, 1.0), "speedup": {"ratio": 2.0, "low": 1.8, "high": 2.2}}
    same = {**variant("dense, int8", 91.0, 1.9), "speedup": {"ratio": 1.05, "low": 0.9, "high": 1.2}}
    write(known, variants=[dense, same, small])
    found = deployed.read_deployed(known)
    assert found is not None
    said = [row["faster"] for row in deployed.table(known, found).rows]
    assert said == [None, "no measurable difference (0.90 to 1.20)", "2.00x as fast (1.80 to 2.20)"]
    shown = deployed_table({**found, "float_layers": [], "dense_is_trained": True, "runtime": RUNTIME}, known.path)
    assert "--round-to auto" not in shown
    unrounded = {**found, "float_layers": [], "dense_is_trained": True, "runtime": RUNTIME, "round_to": 1}
    assert "channels were kept as they come: --round-to auto and a larger --budget" in deployed_table(
        unrounded, known.path
    )
    assert all(line.endswith(str(words)) for line, words in zip(shown.splitlines()[2:4], said[1:], strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": 7},
        {"variants": [{"name": "x"}]},
        {"variants": [{**variant("x", 1.0, 1.0), "speedup": {"ratio": 1.0}}]},
        {"float_layers": [1]},
    ],
)
def test_damaged_file(known: Run, changes: dict[str, Any]) -> None:
    write(known, **changes)
    with pytest.raises(InputError, match=r"deployed\.json is damaged"):
        page([known])
