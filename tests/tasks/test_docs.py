"""The examples of docs/tasks.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from depl0.app.data import DataSettings, open_data
from depl0.app.recipes import get, with_overrides, write_recipe
from depl0.app.recipes.toml import parse_recipe
from depl0.app.tasks import TASKS, find_task

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def test_the_task_of_ones_own() -> None:
    task = find_task("my_task.py:Keypoints")
    ((_, points),) = open_data("my_data.py:people", DataSettings(batch_size=40)).train.epoch(0)
    outputs = (points + torch.tensor([3.0, 4.0, 0.0, 0.0])).requires_grad_()
    assert task.value(task.measure(outputs, points).detach()) == pytest.approx(2.5)  # 5 pixels off, and none
    task.loss(outputs, points).backward()


def test_the_data_of_ones_own() -> None:
    settings = DataSettings(batch_size=40)
    ((_, maps),) = open_data("my_data.py:street", settings).train.epoch(0)
    assert maps.dtype == torch.int64 and maps.unique().tolist() == [0, 1]
    ((_, targets),) = open_data("my_data.py:several", settings).train.epoch(0)
    assert {name: (tensor.dtype, len(tensor)) for name, tensor in targets.items()} == {
        "maps": (torch.int64, 40),
        "points": (torch.float32, 40),
    }


def test_the_table_has_every_task() -> None:
    rows = dict(re.findall(r"^\| `(\w+)`.*?\| `(\w+)`", PAGE, flags=re.MULTILINE))
    assert {**rows, "heads": "accuracy"} == {name: kind.metric.name for name, kind in TASKS.items()}


def test_the_recipe() -> None:
    (section,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    text = write_recipe(get("digits")).replace('[task]\nspec = "classification"\n', section)
    wanted = with_overrides(get("digits"), {"task.spec": "segmentation", "task.settings": "{ignore_index = 0}"})
    assert parse_recipe(text) == wanted
