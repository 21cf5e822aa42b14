"""``depl0 latency``: models and runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Type
from tests.networks.tiny import run, tiny_recipe

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SMALL = "small_cnn --channels 1 --image-size 8 --threads 1 --seconds 0.2"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPL0_CACHE", str(tmp_path / "cache"))


def test_a_model_alone_is_timed_dense(type_command: Type) -> None:
    typed = type_command(f"latency {SMALL} --backend eager --batch 1,4 --json")
    assert typed.code == 0, typed.err
    found = json.loads(typed.out)
    assert (found["threads"], found["clock"]) == (1, "CPU time")
    assert [(entry["batch"], entry["network"]) for entry in found["timings"]] == [(1, "dense"), (4, "dense")]
    for entry in found["timings"]:
        assert 0 < entry["best_ms"] <= entry["median_ms"] and entry["spread_ms"] >= 0 and entry["speedup"] is None


def test_a_run_is_compared_with_its_dense_network(type_command: Type, tmp_path: Path) -> None:
    run(tiny_recipe(search__epochs=0, finetune__epochs=0), tmp_path / "run")
    typed = type_command("latency run --backend eager --seconds 0.1")
    assert typed.code == 0, typed.err
    for word in ("dense", "compact", "MACs left", "as fast", "thread"):
        assert word in typed.out
    assert type_command("latency run/compact --backend eager --seconds 0.1").code == 0
    (tmp_path / "run" / "recipe.toml").unlink()
    alone = type_command("latency run/compact --backend eager")
    assert alone.code == 2 and "not what builds the dense TinyNet" in alone.err


def test_a_backend_that_is_not_there_is_skipped_with_the_reason(
    type_command: Type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    typed = type_command(f"latency {SMALL} --backend compile")
    assert typed.code == 0
    assert "skipped compile, batch 1: torch.compile failed" in typed.out and "No working C++ compiler" in typed.out


def test_too_little_memory_is_said_in_words(type_command: Type) -> None:
    typed = type_command(f"latency {SMALL} --batch 10000000000")
    assert typed.code == 1, typed.err
    assert typed.err.endswith("error: out of memory.\nhint: use smaller images or batches.\n")
