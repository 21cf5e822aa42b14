"""Runs that an older version was interrupted in are continued, and end in the network that they would have ended in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from depl0.app.recipes.toml import read_recipe
from depl0.app.training.prune import prune

pytestmark = pytest.mark.runs

RUNS = sorted(path.parent for path in (Path(__file__).parent / "v1" / "runs").glob("*/run"))


@pytest.mark.parametrize("golden", RUNS, ids=[path.name for path in RUNS])
def test_an_interrupted_run_goes_on(golden: Path, tmp_path: Path) -> None:
    """The folders hold checkpoints of the warm-up, after a cut, after freezing, and of both kinds of fine-tuning."""
    out = Path(shutil.copytree(golden / "run", tmp_path / "run"))
    _, summary = prune(read_recipe(out / "recipe.toml"), str(out), resume=True)
    assert summary["steps"] == 30
    found, expected = load_file(out / "compact" / "compact.safetensors"), load_file(golden / "expected.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
