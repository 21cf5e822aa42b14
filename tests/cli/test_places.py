"""A run that is looked at, and continued, from another folder than it was started in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

FILES = """
import numpy as np
from torch import nn
def data():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (48, 1, 8, 6)).astype(np.uint8), rng.integers(0, 3, 48)
    return (images[:32], labels[:32]), (images[32:], labels[32:])
def net(num_classes, image_size):
    assert image_size == (8, 6)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 24, num_classes))
"""
WORDS = "prune --model mine.py:net --data mine.py:data --epochs 1 --finetune-epochs 0 --device cpu --batch-size 16"


def test_a_run_finds_its_data_again(type_command: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(FILES)
    assert type_command(f"{WORDS} --out {tmp_path}/run").code == 0
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["started_in"] == ".."
    before = json.loads(type_command("eval run --json").out)
    elsewhere = tmp_path / "else" / "where"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    assert json.loads(type_command("eval ../../run --json").out) == before
    exported = type_command("export ../../run --to safetensors")
    assert exported.code == 0, exported.err
    exported = type_command("export ../../run --to onnx --int8 --max-drop 100 --calibration-images 16")
    assert exported.code == 0, exported.err
    # continued from its last checkpoint: the data, the network and the task are opened again
    (tmp_path / "run" / "summary.json").unlink()
    typed = type_command(f"{WORDS} --out ../../run --resume --json")
    assert typed.code == 0, typed.err
    assert json.loads(typed.out)["compact"]["accuracy"] == before["accuracy"]
