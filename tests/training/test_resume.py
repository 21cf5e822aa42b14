"""A run that was stopped and continued is, to the bit, the run that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from depl0.errors import InputError, TrainingError
from tests.networks.tiny import Noisy, PowerCut, cut_power, interrupt, run, tiny_recipe
from tests.support.resume import what_matters

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

RECIPES: dict[str, dict[str, Any]] = {
    "budget": {},
    "penalty, clipping": {
        "penalty__weight": 1e-3,
        "search__clip_norm": 1.0,
        "gates__generator": "independent",
    },
    "gated fine-tuning": {"finetune__gated": True, "gates__of": "params"},
    "dense baseline": {"search__dense_baseline": True, "search__epochs": 2, "finetune__epochs": 1},
}
STEPS = {"budget": 15, "penalty, clipping": 15, "gated fine-tuning": 15, "dense baseline": 18}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every recipe, run without a stop."""
    folders = {}
    for name, fields in RECIPES.items():
        folders[name] = tmp_path_factory.mktemp("whole") / "run"
        summary = run(tiny_recipe(**fields), folders[name])
        assert summary["steps"] == STEPS[name]
    return folders


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("budget", [2]),  # in the warm-up, within an epoch
        ("budget", [3]),  # the warm-up's last step, the end of an epoch
        ("budget", [9]),  # the end of the search
        ("budget", [5, 9, 11]),  # three times
        ("penalty, clipping", [5]),
        ("penalty, clipping", [13]),
        ("gated fine-tuning", [7]),
        ("gated fine-tuning", [11]),
        ("dense baseline", [4]),
        ("dense baseline", [9]),  # its end
        ("dense baseline", [11, 17]),
    ],
)
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    name: str, steps: list[int], whole: dict[str, Path], tmp_path: Path
) -> None:
    recipe, out, done = tiny_recipe(**RECIPES[name]), tmp_path / "run", 0
    for step in steps:
        reporter = Noisy(at_step=step - done, act=interrupt)
        with pytest.raises(TrainingError, match=f"interrupted at step {step};") as caught:
            run(recipe, out, reporter, resume=done > 0)
        assert "--resume" in str(caught.value)
        done = step
    reporter = Noisy()
    run(recipe, out, reporter, resume=True)
    assert f"resumed from step {done}" in reporter.notes
    assert reporter.steps == STEPS[name] - done
    assert what_matters(out) == what_matters(whole[name])


@pytest.mark.parametrize(("step", "from_step"), [(2, None), (8, 6), (14, 12)])
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    step: int, from_step: int | None, whole: dict[str, Path], tmp_path: Path
) -> None:
    recipe, out = tiny_recipe(run__checkpoint_minutes=0), tmp_path / "run"
    with pytest.raises(PowerCut):
        run(recipe, out, Noisy(at_step=step, act=cut_power))
    reporter = Noisy()
    run(recipe, out, reporter, resume=True)
    if from_step is None:
        assert any("no checkpoint yet" in note for note in reporter.notes)
    else:
        assert f"resumed from step {from_step}" in reporter.notes
    assert what_matters(out) == what_matters(whole["budget"])


def test_epochs_that_are_done_again_are_written_down_once(whole: dict[str, Path], tmp_path: Path) -> None:
    recipe, out = tiny_recipe(), tmp_path / "run"
    with pytest.raises(TrainingError):
        run(recipe, out, Noisy(at_step=2, act=interrupt))  # the only checkpoint before the end of the search
    with pytest.raises(PowerCut):
        run(recipe, out, Noisy(at_step=6, act=cut_power), resume=True)  # at step 8, two epochs later
    assert [json.loads(line)["step"] for line in (out / "gates.jsonl").read_text().splitlines()] == [0, 3, 6]
    run(recipe, out, resume=True)
    assert what_matters(out) == what_matters(whole["budget"])


def test_a_run_goes_on_from_an_older_checkpoint_where_the_newest_is_damaged(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    recipe, out = tiny_recipe(run__checkpoint_minutes=0), tmp_path / "run"
    with pytest.raises(PowerCut):
        run(recipe, out, Noisy(at_step=8, act=cut_power))
    (values,) = (out / "checkpoints").glob("step-000000006-*")
    values.write_bytes(values.read_bytes()[:-100])
    reporter = Noisy()
    run(recipe, out, reporter, resume=True)
    assert "resumed from step 3" in reporter.notes
    assert what_matters(out) == what_matters(whole["budget"])


def test_a_finished_run_is_not_trained_again(whole: dict[str, Path]) -> None:
    reporter = Noisy()
    summary = run(tiny_recipe(), whole["budget"], reporter, resume=True)
    assert reporter.steps == 0
    assert summary == json.loads((whole["budget"] / "summary.json").read_text())


def test_another_recipe_is_refused_by_the_name_of_the_field(whole: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"search\.epochs was 3 and is now 4"):
        run(tiny_recipe(search__epochs=4), whole["budget"], resume=True)


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    recipe, out = tiny_recipe(), tmp_path / "run"

    def twice() -> None:
        interrupt()
        interrupt()

    with pytest.raises(TrainingError, match="interrupted before the first checkpoint"):
        run(recipe, out, Noisy(at_step=5, act=twice))
    assert not (out / "checkpoints").exists()
