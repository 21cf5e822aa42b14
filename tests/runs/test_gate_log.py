"""What a run writes down for its report: gates after every epoch, layers, sizes and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from depl0.app.runs.records import settled_epoch
from depl0.surgery.files import file_size, save
from tests.networks.tiny import TinyNet, run, tiny_gated, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("log") / "run"
    return folder, run(tiny_recipe(), folder)


def test_every_search_epoch_has_a_line(finished: tuple[Path, dict[str, Any]]) -> None:
    lines = [json.loads(line) for line in (finished[0] / "gates.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["epoch"], line["step"]) for line in lines] == [
        ("search", 0, 0), ("search", 1, 3), ("search", 2, 6), ("search", 3, 9),
    ]  # fmt: skip
    assert lines[0]["open"] == {"conv1": [1000] * 6, "conv2": [1000] * 8}  # the warm-up holds all gates open
    assert lines[-1]["open"] != lines[0]["open"]
    metrics = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in metrics if "event" not in line]
    for line, epoch in zip(lines[1:], metrics, strict=False):
        values = [value for group in line["open"].values() for value in group]
        undecided = sum(100 < value < 900 for value in values) / len(values)
        assert undecided == pytest.approx(epoch["undecided"], abs=1e-6)


def test_lines_can_be_closer_than_epochs(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run(tiny_recipe(run__gates_steps=2), tmp_path / "run")
    lines, usual = (
        [json.loads(line) for line in (folder / "gates.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "run", finished[0])
    )
    assert [line["step"] for line in lines] == [0, 2, 3, 4, 6, 8, 9]  # epochs of 3 steps
    assert [line["epoch"] for line in lines] == pytest.approx([0, 2 / 3, 1, 4 / 3, 2, 8 / 3, 3])
    assert [line for line in lines if line["step"] % 3 == 0] == usual


def test_since_when_the_gates_have_been_the_final_ones(finished: tuple[Path, dict[str, Any]]) -> None:
    lines = [{"phase": "search", "epoch": epoch, "open": {"a": values}} for epoch, values in ENDING.items()]
    assert settled_epoch(lines, [1.0, 0.7, 0.0], "median") == 2
    assert settled_epoch(lines, [1.0, 0.7, 0.0], "paper") == 3
    assert settled_epoch(lines, [0.0, 0.0, 0.0], "median") == 4  # freezing itself changed them
    assert settled_epoch([], [1.0], "median") is None
    assert 0 <= finished[1]["settled_epoch"] <= 3


ENDING = {0: [1000] * 3, 1: [1000, 400, 0], 2: [1000, 900, 400], 3: [1000, 600, 0], 4: [1000, 600, 0]}


def test_the_summary_knows_every_layer(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = finished
    layers = {row["layer"]: row for row in summary["layers"]}
    assert list(layers) == ["conv1", "conv2", "linear"]
    assert [row["channels"] for row in layers.values()] == [6, 8, 4]
    keep = json.loads((folder / "compact" / "compact.json").read_text())["keep"]
    for name in ("conv1", "conv2"):
        assert layers[name]["kept"] == len(keep.get(f"{name}.weight", {}).get("0", range(layers[name]["channels"])))
    assert layers["linear"]["kept"] == 4
    assert layers["linear"]["unprunable"] == {"reaches the network's output": 4}
    for place, network in enumerate(("dense", "compact")):
        assert sum(row["macs"][place] for row in layers.values()) == summary[network]["macs"]


def test_the_summary_knows_sizes(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = finished
    assert summary["compact"]["file_bytes"] == (folder / "compact" / "compact.safetensors").stat().st_size
    assert summary["compact"]["file_bytes"] < summary["dense"]["file_bytes"]
    assert summary["dense"]["latency_ms_32"] > 0


def test_the_file_size_is_that_of_the_file(tmp_path: Path) -> None:
    compact = tiny_gated().extract()
    save(compact, tmp_path)
    assert file_size(compact) == (tmp_path / "compact.safetensors").stat().st_size
    assert file_size(TinyNet()) > 4 * sum(p.numel() for p in TinyNet().parameters())
