"""What an exported file says of itself, from what a run says of its task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from depl0.app.deploy.source import open_source
from depl0.app.recipes import catalog
from depl0.app.recipes.toml import with_overrides, write_recipe
from depl0.app.runs.paths import trust_code

pytestmark = pytest.mark.integrations

GOLDEN = Path(__file__).parents[1] / "golden"
NETWORKS = Path(__file__).parents[1] / "networks"
RMSE = {"name": "rmse", "unit": "", "higher_is_better": False}


def write_run(folder: Path, summary: dict[str, Any]) -> Path:
    shutil.copytree(GOLDEN / "v1" / "blocks", folder / "compact")
    recipe = with_overrides(catalog.get("digits"), {"model.spec": f"{NETWORKS / 'golden.py'}:TinyDigits"})
    trust_code(recipe)
    (folder / "recipe.toml").write_text(write_recipe(recipe))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (
            {"metric": RMSE, "dense": {"rmse": 0.25}, "compact": {"rmse": 0.5}, "input": {"num_outputs": 10}},
            {"depl0.metric": "rmse", "depl0.rmse": "0.5", "depl0.dense_rmse": "0.25"},
        ),
        (  # of a run from before there were tasks
            {"dense": {"accuracy": 91.0}, "compact": {"accuracy": 90.0}, "input": {"num_classes": 10}},
            {"depl0.metric": "accuracy", "depl0.accuracy": "90.0", "depl0.dense_accuracy": "91.0"},
        ),
        ({"input": {"num_classes": None, "num_outputs": None}}, {}),
    ],
)
def test_the_metric_of_the_run(tmp_path: Path, summary: dict[str, Any], said: dict[str, str]) -> None:
    found = open_source(write_run(tmp_path / "run", summary)).metadata
    words = ("metric", "rmse", "accuracy")
    assert {key: value for key, value in found.items() if any(word in key for word in words)} == said
