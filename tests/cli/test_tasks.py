"""Any task from the command line: prune, evaluate, compare, report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

OWN = """
import torch
from torch import nn
from depl0.app.tasks import Metric, Task

rng = torch.Generator().manual_seed(0)
images = torch.randint(256, (80, 1, 8, 8), dtype=torch.uint8, generator=rng)
bright = images.float().mean((1, 2, 3)) / 255
maps = (images[:, 0] > 127).to(torch.uint8)
maps[:, 0] = 255

def split(targets, cut=lambda targets, part: targets[part]):
    return (images[:64], cut(targets, slice(64))), (images[64:], cut(targets, slice(64, 80)))

def label_maps(): return split(maps)
def tables(): return split({"bright": bright}, lambda targets, part: {k: v[part] for k, v in targets.items()})

class Brightness(Task):
    metric = Metric("mean_error", higher_is_better=False)
    def loss(self, outputs, targets):
        return nn.functional.l1_loss(outputs[:, 0].float(), targets["bright"])
    def measure(self, outputs, targets):
        errors = (outputs[:, 0].float() - targets["bright"]).abs()
        return torch.stack([errors.sum(), torch.full_like(errors[0], len(errors))])
    def value(self, sums):
        return float(sums[0] / sums[1])

def vector(num_classes=1):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
    )

def pixels():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
"""
SHORT = "--epochs 2 --finetune-epochs 1 --batch-size 16 --budget 0.5 --device cpu"
CASES = {
    "segmentation": ("own.py:pixels", "own.py:label_maps", "miou", "mIoU"),
    "own.py:Brightness": ("own.py:vector", "own.py:tables", "mean_error", "mean error"),
}


@pytest.fixture(autouse=True)
def own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)


@pytest.mark.parametrize("task", CASES)
def test_any_task_from_data_to_report(type_command: Type, tmp_path: Path, task: str) -> None:
    model, data, name, label = CASES[task]
    typed = type_command(f"prune --model {model} --data {data} --task {task} {SHORT} --out run --json")
    assert typed.code == 0, typed.err
    assert re.search(rf"^search 1/2  loss [\d.]+  {label} ", typed.err, flags=re.MULTILINE)
    summary = json.loads(typed.out)
    assert summary["metric"]["name"] == name
    assert summary["macs_left"] <= 0.5
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if "event" not in line]
    assert all(f"test_{name}" in line and f"train_{name}" in line for line in epochs)
    assert epochs[-1][f"test_{name}"] == summary["compact"][name]

    found = json.loads(type_command("eval run --json").out)
    assert found[name] == pytest.approx(summary["compact"][name], rel=1e-5)
    assert type_command("eval run").out.startswith(f"{label} ")
    assert type_command("report run").code == 0
    assert label in (tmp_path / "run" / "report.html").read_text()
