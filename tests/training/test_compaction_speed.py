"""Compaction together with channels last and compilation: every smaller network is laid out and compiled anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0.app.recipes.toml import with_overrides
from depl0.app.runtime import compiling
from depl0.errors import TrainingError
from tests.training.test_compaction import recipe_of
from tests.training.test_resume import what_matters
from tests.training.tiny import Noisy, interrupt, run


@pytest.mark.parametrize("name", ["progressive", "progressive, penalty"])
def test_a_run_that_shrinks_channels_last_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    recipe = with_overrides(recipe_of(name), {"run.channels_last": "on"})
    summary = run(recipe, tmp_path / "whole")
    assert summary["compactions"] and summary["channels_last"]
    after = summary["compactions"][0]["step"] + 1
    with pytest.raises(TrainingError, match="interrupted"):
        run(recipe, tmp_path / "run", Noisy(after, interrupt))
    run(recipe, tmp_path / "run", resume=True)
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "whole")


@pytest.mark.parametrize("name", ["progressive", "progressive, penalty"])
def test_a_compiled_run_shrinks_as_a_plain_one_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    plain = run(recipe_of(name), tmp_path / "plain")
    run(with_overrides(recipe_of(name), {"run.compile": True}), tmp_path / "run")
    assert plain["compactions"]
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "plain")
