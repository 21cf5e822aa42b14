"""Claims are judged by run folders: confirmed, not confirmed or open, by a rule that the page states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depl0.cli.app import main
from depl0.errors import InputError
from depl0.recipes.toml import write_recipe
from depl0.studies.claims import judge, page
from tests.training.tiny import run, tiny_recipe

ARMS: dict[str, dict[str, Any]] = {
    "dep-l0": {},
    "dep-l0:backward": {"gates__direction": "backward"},
    "dep-l0:lstm": {"gates__generator": "lstm"},
    "control": {"gates__generator": "bias"},
    "l0-hc": {"gates__method": "l0-hc", "gates__generator": "independent"},
}
Make = Callable[..., None]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run whose files the others are copied from."""
    out = tmp_path_factory.mktemp("real") / "run"
    run(tiny_recipe(search__epochs=2, finetune__epochs=0), out)
    return out


@pytest.fixture
def make(real: Path, tmp_path: Path) -> Make:
    """Return a function that writes runs of one kind: scores, costs and settled epochs as given."""

    def write(arm: str, scores: list[float], cost: float = 0.5, settled: float = 2.0, **fields: Any) -> None:
        for seed, score in enumerate(scores):
            folder = tmp_path / "runs" / f"{arm.replace(':', '-')}-{fields.get('target__budget', 0.5)}-{seed}"
            folder.mkdir(parents=True)
            for name in ("environment.json", "gates.jsonl"):
                shutil.copy(real / name, folder / name)
            recipe = tiny_recipe(**ARMS[arm], **fields, run__seed=seed, search__epochs=2, finetune__epochs=0)
            (folder / "recipe.toml").write_text(write_recipe(recipe))
            summary = json.loads((real / "summary.json").read_text())
            summary["compact"]["accuracy"] = score
            summary |= {"budget_reached": cost, "settled_epoch": settled + seed / 10}
            for row, kept in zip(summary["layers"], (4, 4) if arm == "dep-l0" else (1 + seed, 8), strict=False):
                row["kept"] = kept
            (folder / "summary.json").write_text(json.dumps(summary))

    return write


def verdicts(tmp_path: Path, **options: str) -> dict[str, tuple[str, str]]:
    found = judge([tmp_path / "runs"], **options)["claims"]
    return {claim["claim"].split()[0]: (claim["verdict"], claim["control_verdict"]) for claim in found}


def test_verdicts(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2, 90.1], settled=1.0)
    make("l0-hc", [89.0, 89.2, 89.1], settled=3.0)
    make("control", [90.0, 90.1, 90.2], settled=1.0)
    make("dep-l0:backward", [90.0, 90.1, 90.0])
    make("dep-l0:lstm", [91.0, 91.0, 91.1])
    assert verdicts(tmp_path) == {
        "Dep-L0": ("confirmed", "not confirmed"),  # better than L0-HC, and not because of the dependency
        "its": ("confirmed", "confirmed"),  # the last of two claims that begin so: more even over layers
        "FC": ("not confirmed", "not confirmed"),
        "backward": ("confirmed", "not confirmed"),
    }
    result = judge([tmp_path / "runs"])
    assert (result["claims"][1]["verdict"], result["claims"][1]["control_verdict"]) == ("confirmed", "not confirmed")
    (better,) = result["claims"][0]["comparisons"]
    assert better["difference_in_favour_of_left"] == pytest.approx(1.0)
    assert better["standard_error"] == pytest.approx((0.01 / 3 + 0.01 / 3) ** 0.5)
    (lstm,) = result["claims"][3]["comparisons"]
    assert (lstm["right"], lstm["reason"]) == ("dep-l0:lstm", "the opposite holds")
    text = page(result)
    assert "| Dep-L0 beats L0-HC at equal cost" in text and "more than 2 standard errors" in text
    assert "89.10 ± 0.10 (n = 3)" in text and str(tmp_path) not in text + json.dumps(result)


def test_too_few_runs_and_other_costs_leave_a_claim_open(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2])
    make("l0-hc", [80.0, 80.2, 80.1])
    assert verdicts(tmp_path)["Dep-L0"] == ("open", "open")
    make("dep-l0", [90.0, 90.2, 90.1], target__budget=0.3)
    make("l0-hc", [80.0, 80.2, 80.1], cost=0.6, target__budget=0.3)
    found = judge([tmp_path / "runs"])
    assert found["claims"][0]["verdict"] == "open"
    reasons = {each["reason"] for each in found["claims"][0]["comparisons"]}
    assert reasons == {"fewer than 3 runs", "costs differ by 10.0 points"}
    assert found["claims"][3]["comparisons"] == []


def test_the_number_of_reading_processes_is_no_setting(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2, 90.1], data__workers=0)
    make("l0-hc", [80.0, 80.2, 80.1])
    assert verdicts(tmp_path)["Dep-L0"][0] == "confirmed"


def test_all_settings_must_confirm(make: Make, tmp_path: Path) -> None:
    for budget, gain in ((0.5, 1.0), (0.3, 0.0)):
        make("dep-l0", [90.0 + gain, 90.1 + gain, 90.2 + gain], target__budget=budget)
        make("l0-hc", [90.0, 90.1, 90.2], target__budget=budget)
    assert verdicts(tmp_path)["Dep-L0"][0] == "not confirmed"


def test_the_command(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("dep-l0", [90.0, 90.2, 90.1])
    make("dep-l0:lstm", [90.0, 90.2, 90.1])
    out = tmp_path / "claims"
    words = ["claims", str(tmp_path / "runs"), "--control", "gates.generator=lstm", "--out", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == (out / "README.md").read_text()
    result = json.loads((out / "claims.json").read_text())
    assert result["claims"][0]["control_comparisons"][0]["right"] == "control"
    assert main(["claims", str(tmp_path / "runs"), "--method", "dep-l0:gru"]) == 2
    assert "there is no run of 'dep-l0:gru'" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"--control takes section\.field=value"):
        judge([tmp_path / "runs"], control="lstm")
    with pytest.raises(InputError, match="holds no run"):
        judge([out])
