"""The paper's recipes on tiny networks: nothing is cut or measured anew on the way, and rates are as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depl0.app.recipes import get, with_overrides
from tests.networks.tiny import CLASSES, run

pytestmark = pytest.mark.usefixtures("remembered_plans")


class TinyResNet(nn.Module):
    """A first convolution on a shortcut and one block, with the names of the CIFAR ResNets."""

    def __init__(self, num_classes: int = CLASSES, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.inner, self.bn2 = nn.Conv2d(6, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.outer, self.bn3 = nn.Conv2d(12, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.linear = nn.Linear(6, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        x = torch.relu(x + self.bn3(self.outer(torch.relu(self.bn2(self.inner(x))))))
        return self.linear(x.mean((2, 3)))


def run_tiny(name: str, out: Path, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a recipe for two epochs on other data; return summary and the lines of its epochs."""
    tiny = {
        **{"model.spec": "tests.paper.test_literal_recipes:TinyResNet", "data.spec": "tests.networks.tiny:make_data"},
        **{"data.batch_size": 16, "data.augment": "none", "data.workers": 0, "search.epochs": 2},
        **{"data.mean": None, "data.std": None, "data.image_size": None, "run.device": "cpu", "run.trackers": []},
    }
    recipe = with_overrides(get(name), {**tiny, **{field.replace("__", "."): value for field, value in fields.items()}})
    summary = run(recipe, out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return summary, [line for line in lines if "event" not in line]


def test_resnet56_as_printed(tmp_path: Path) -> None:
    summary, epochs = run_tiny("resnet56-cifar10-paper", tmp_path / "run", penalty__weight=1e-2)
    assert list(summary["groups"]) == ["conv1", "inner"]
    assert summary["compactions"] == [] and summary["freezing"]["statistics"] == "kept"
    assert {line["gate_lr"] for line in epochs} == {1e-3}
    closed = summary["groups"]["inner"]["gates"] - summary["groups"]["inner"]["open"]
    kept = {row["layer"]: row["kept"] for row in summary["layers"]}
    assert kept == {"conv1": 6, "inner": 12 - closed, "outer": 6, "linear": CLASSES}
    assert closed > 0  # by the initialisation, if by nothing else
