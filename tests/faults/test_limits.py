"""Large things take bounded time and memory: networks of many layers, many runs, files that pretend to be huge."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

import depl0
from depl0.app.data import open_data
from depl0.app.models.spec import build_model
from depl0.app.recipes.toml import read_recipe, write_recipe
from depl0.app.reports import html, layers, report
from depl0.app.reports.canvas import style, write
from depl0.app.reports.run import GateHistory, read_run, read_runs
from depl0.app.runs.gate_log import SCALE, gates_line
from depl0.errors import DataError, Depl0Error
from tests.networks.tiny import TinyNet, tiny_gated, tiny_recipe
from tests.support.bounds import bounded
from tests.support.layouts import write_cifar10
from tests.support.runs import write_run

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("remembered_plans")]

HUGE = 200_000_000_000


def make_huge(path: Path) -> None:
    """Make a file that pretends to be larger than any memory; it takes no room on the disk."""
    os.truncate(path, HUGE)


@pytest.mark.slow
def test_the_gates_of_resnet50_over_120_epochs_take_less_than_50_megabytes() -> None:
    gated = depl0.attach(build_model("resnet50", 1000, 3, 64), torch.zeros(1, 3, 64, 64))
    groups = gates_line(gated)["open"]
    assert sum(map(len, groups.values())) == gated.plan.num_gates == 11_456
    rng = Random(0)
    line = {
        "phase": "search",
        "epoch": 120,
        "step": 600_000,
        "open": {
            name: [rng.choice([0, SCALE, rng.randrange(SCALE)]) for _ in values] for name, values in groups.items()
        },
        "kept": {name: list(range(len(values))) for name, values in groups.items()},  # as if every host were a cut one
    }
    assert 121 * len(json.dumps(line)) < 16_000_000


def test_a_picture_of_many_layers_is_one_picture(tmp_path: Path) -> None:
    """With axes for each layer, 300 of them took five minutes."""
    rng = np.random.default_rng(0)
    groups = {f"layer{i}.conv": rng.random((16, 40), dtype=np.float32) for i in range(1000)}
    with bounded(seconds=60), style():
        write(layers.heat_map(GateHistory([float(i) for i in range(40)], groups), "deep"), tmp_path, "gates")
    assert (tmp_path / "gates.svg").stat().st_size < 3_000_000


def test_the_picture_shows_the_gates() -> None:
    """Two layers, of two gates and of one, over two epochs, pixel by pixel."""
    groups = {"a": np.array([[0.0, 1.0], [0.5, 0.25]], dtype=np.float32), "b": np.array([[1.0, 0.0]], dtype=np.float32)}
    pixels = layers._sampled(list(groups.values()), np.array([0.0, 2.0, 3.0]), [-0.5, 0.5, 1.5])
    assert pixels.shape == (12, 8)
    assert pixels[[0, 3, 4, 7, 8, 11]][:, [0, 3, 4, 7]].tolist() == [
        [0, 0, 1, 1], [0, 0, 1, 1], [0.5, 0.5, 0.25, 0.25], [0.5, 0.5, 0.25, 0.25], [1, 1, 0, 0], [1, 1, 0, 0],
    ]  # fmt: skip


def test_many_runs_are_rows_and_the_first_ones_have_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (html, report):
        monkeypatch.setattr(module, "DETAILED", 1)
    runs = read_runs([write_run(tmp_path / f"run{i}", layers=1, gates=2, epochs=1) for i in range(3)], detailed=1)
    assert [run.gates is not None for run in runs] == [True, False, False]
    path = report.write_report(runs, tmp_path / "report")
    text = path.read_text()
    assert text.count('class="run"') == 1 and "All 3 runs in one table, and the first 1 in detail." in text
    assert all(text.count(f"run{i}</td>") == 1 for i in range(3))
    figures = sorted(path.stem for path in (tmp_path / "report/figures").glob("*.png"))
    assert figures == ["gates-run0", "structure", "training-run0"]
    assert report.as_text(runs, "md").count("dense → compact") == 1


@pytest.mark.parametrize("name", ["recipe.toml", "metrics.jsonl", "gates.jsonl", "summary.json", "environment.json"])
def test_huge_files_of_a_run_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run")
    make_huge(folder / name)
    with bounded(), pytest.raises(Depl0Error, match=f"{name} cannot be read: it has 200,000,000,000 bytes, more than"):
        read_run(folder)


def test_a_huge_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(write_recipe(tiny_recipe()))
    make_huge(tmp_path / "r.toml")
    with bounded(), pytest.raises(Depl0Error, match=r"r\.toml' cannot be read: it has 200,000,000,000 bytes"):
        read_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize("name", ["compact.json", "compact.safetensors"])
def test_huge_compact_networks_are_refused(tmp_path: Path, name: str) -> None:
    depl0.save(tiny_gated().extract(), tmp_path)
    make_huge(tmp_path / name)
    with bounded(), pytest.raises(Depl0Error, match=f"{name} is not read: it has 200,000,000,000 bytes, more than"):
        depl0.load(tmp_path, TinyNet)


def test_huge_records_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    os.truncate(tmp_path / "cifar-10-batches-bin/test_batch.bin", 3073 * 50_000_000)
    with bounded(), pytest.raises(DataError, match=r"must have 30,730,000 bytes.* got 153,650,000,000 instead"):
        open_data(f"cifar10:{tmp_path}")
