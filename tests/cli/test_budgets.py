"""``depl0 prune --quick --budget`` with several budgets, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import depl0
from depl0.app.models.spec import build_model
from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

QUICK = "prune digits --weights w.safetensors --quick --device cpu --set data.limit_train=128 "
QUICK += "--set model.allow_chance=true"


@pytest.fixture
def weights(tmp_path: Path) -> None:
    torch.manual_seed(5)
    save_file(build_model("small_cnn", 10, 1, 8).state_dict(), tmp_path / "w.safetensors")


@pytest.mark.usefixtures("weights")
def test_every_budget_is_a_run_of_its_own(type_command: Type, tmp_path: Path) -> None:
    typed = type_command(f"{QUICK} --recover 2 --budget 0.3,0.6 --out out")
    assert typed.code == 0, typed.err
    for kind in ("json", "md", "png", "svg", "pdf"):
        assert (tmp_path / "out" / f"comparison.{kind}").is_file()
    assert (tmp_path / "out" / "comparison-latency.png").is_file()
    result = json.loads((tmp_path / "out" / "comparison.json").read_text())
    for row, summary in zip(result["methods"], _summaries(tmp_path / "out", "0.6", "0.3"), strict=True):
        assert row["equal_answers"]["mean"] == summary["agreement"]["equal"]
        assert row["latency_ms"]["mean"] == summary["compact"]["latency_ms"]
        assert row["macs_left"]["mean"] == summary["macs_left"] <= row["budget"]
        assert (
            f"{100 * row['equal_answers']['mean']:.1f} %" in typed.out
            and f"{row['latency_ms']['mean']:.2f} ms" in typed.out
        )
    assert "equal answers" in typed.out and "latency, batch 1" in typed.out

    # each is the network of its own run, to be loaded and exported
    assert type_command(f"{QUICK} --recover 2 --budget 0.3 --out alone").code == 0
    first, second = (load_file(tmp_path / run / "compact/compact.safetensors") for run in ("out/budget-0.3", "alone"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    compact = depl0.load(tmp_path / "out/budget-0.3/compact", lambda: build_model("small_cnn", 10, 1, 8))
    assert depl0.info(compact).macs_left <= 0.3
    assert type_command("export out/budget-0.3 --to safetensors").code == 0


def _summaries(folder: Path, *budgets: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"budget-{budget}" / "summary.json").read_text()) for budget in budgets]
