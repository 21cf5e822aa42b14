"""Many runs in one folder: refused, failed, interrupted, continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.progress import Reporter
from depl0.app.studies.study import Outcome, Study
from depl0.errors import FormatError, InputError, RunInterruptedError
from tests.networks.tiny import Noisy, interrupt, tiny_recipe
from tests.support.summaries import a_summary, finish_run

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

RECIPE = tiny_recipe()
TWO = {"a": RECIPE, "b": with_overrides(RECIPE, {"run.seed": 1})}


def statuses(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.name: outcome.status for outcome in outcomes}


def test_a_member_that_fails_does_not_lose_the_others_and_is_tried_again(tmp_path: Path) -> None:
    # a loss that is no number, in the middle of a training
    members = {"a": tiny_recipe(model__spec="tests.networks.tiny:ScoresThatExplode"), "b": RECIPE}
    seen: list[dict[str, str]] = []
    outcomes = Study(members, tmp_path).run(Reporter(), lambda found: seen.append(statuses(found)))
    assert seen == [{"a": "failed", "b": "not started"}, {"a": "failed", "b": "finished"}]
    assert "the loss became" in str(outcomes[0].failure)
    assert outcomes[1].summary == json.loads((tmp_path / "b" / "summary.json").read_text())

    reporter = Noisy()
    Study(members, tmp_path).run(reporter, lambda found: None)
    assert "b (2/2): finished already" in reporter.notes
    assert any(note.startswith("a failed: ") for note in reporter.notes)


def test_an_interruption_ends_the_study_and_a_second_call_goes_on(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    with pytest.raises(RunInterruptedError, match="interrupted with 2 of 2 members left") as caught:
        Study(TWO, tmp_path).run(Noisy(at_step=5, act=interrupt), lambda found: seen.append(statuses(found)))
    assert caught.value.hint == "re-run the same command to continue."
    assert seen == [{"a": "half done", "b": "not started"}]
    reporter = Noisy()
    outcomes = Study(TWO, tmp_path).run(reporter, lambda found: None)
    assert "resumed from step 5" in reporter.notes
    assert statuses(outcomes) == {"a": "finished", "b": "finished"}


def test_a_full_disk_is_the_members_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(recipe: object, out: str, **others: object) -> None:
        if out.endswith("a"):
            raise OSError(28, "No space left on device")
        finish_run(Path(out), a_summary(90.0, 0.5))

    monkeypatch.setattr("depl0.app.studies.member.prune", fill)
    outcomes = Study(TWO, tmp_path).run(Reporter(), lambda found: None)
    assert statuses(outcomes) == {"a": "failed", "b": "finished"}
    assert outcomes[0].failure == "OSError: [Errno 28] No space left on device"


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A study whose first member is done."""
    finish_run(tmp_path / "a", a_summary(90.0, 0.5))
    (tmp_path / "a").rename(tmp_path / "kept")
    study = Study(TWO, tmp_path / "out")
    study._write()
    (tmp_path / "kept").rename(tmp_path / "out" / "a")
    return tmp_path / "out"


def test_another_study_in_the_same_folder_is_refused(begun: Path) -> None:
    before = (begun / "study.json").read_bytes()
    with pytest.raises(InputError, match=r"its members are a, b; asked for: a\.\nhint: continue that"):
        Study({"a": RECIPE}, begun)
    changed = {**TWO, "b": with_overrides(TWO["b"], {"search.epochs": 9})}
    with pytest.raises(InputError, match=r"search\.epochs of b was 3 and is now 9\."):
        Study(changed, begun)
    assert (begun / "study.json").read_bytes() == before


def test_folders_that_are_no_study(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="is not empty and holds no comparison"):
        Study(TWO, tmp_path / "full")
    with pytest.raises(InputError, match="is a file, not a folder"):
        Study(TWO, tmp_path / "full" / "thesis.tex")


@pytest.mark.parametrize("text", ["", '{"members": [{}]}'])
def test_a_damaged_study(begun: Path, text: str) -> None:
    (begun / "study.json").write_text(text)
    with pytest.raises(FormatError, match=r"study\.json is damaged"):
        Study(TWO, begun)


@pytest.mark.parametrize("text", ["{", json.dumps({**a_summary(90.0, 0.5), "compact": None})])
def test_a_damaged_summary_does_not_count_as_finished(tmp_path: Path, text: str) -> None:
    study = Study(TWO, tmp_path / "out")
    for name in TWO:
        finish_run(tmp_path / "out" / name, a_summary(90.0, 0.5))
    (tmp_path / "out" / "a" / "summary.json").write_text(text)
    first, second = study.outcomes()
    assert first.status != "finished" and second.status == "finished"
    if first.failure is not None:
        assert "summary.json cannot be used" in first.failure
