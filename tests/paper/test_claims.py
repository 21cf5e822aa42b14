"""Claims are judged by run folders: confirmed, refuted, too weak to tell or open, by a rule that the page states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.errors import InputError
from depl0.paper.claims.judge import judge
from depl0.paper.claims.page import page, write_claims
from tests.networks.tiny import run, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

ARMS: dict[str, dict[str, Any]] = {
    "dep-l0": {},
    "dep-l0:backward": {"gates__direction": "backward"},
    "dep-l0:lstm": {"gates__generator": "lstm"},
    "control": {"gates__generator": "bias"},
    "l0-hc": {"gates__method": "l0-hc", "gates__generator": "independent"},
    "fc-const": {"gates__generator": "fc-const"},
    "l0-hc-start": {"gates__generator": "independent-fc"},
}
TITLE = "Claims"
Make = Callable[..., None]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run whose files the others are copied from."""
    out = tmp_path_factory.mktemp("real") / "run"
    run(tiny_recipe(search__epochs=2, finetune__epochs=0), out)
    return out


@pytest.fixture
def make(real: Path, tmp_path: Path) -> Make:
    """Return a function that writes runs of one kind: scores, costs, settled steps and gated layers as given."""

    def write(
        arm: str,
        scores: list[float],
        cost: float = 0.5,
        settled: int = 2,
        layers: int = 5,
        differ: int = 3,
        under: str = "runs",
        **fields: Any,
    ) -> None:
        for seed, score in enumerate(scores):
            name = "-".join([arm.replace(":", "-"), *(str(value) for value in fields.values())])
            folder = tmp_path / under / name / f"seed-{seed}"
            folder.mkdir(parents=True)
            shutil.copy(real / "environment.json", folder)
            recipe = tiny_recipe(**ARMS[arm], **fields, run__seed=seed, run__gates_steps=1, search__epochs=2)
            (folder / "recipe.toml").write_text(write_recipe(recipe))
            lines = [{"phase": "search", "epoch": step / 10, "step": step, "open": {"a": [900]}} for step in range(20)]
            (folder / "gates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            summary = json.loads((real / "summary.json").read_text())
            summary["compact"]["accuracy"] = score
            uneven = 0 if arm == "dep-l0" else 3
            summary |= {
                "convergence": {"epoch": 1.5},
                "budget_reached": cost,
                "macs_left": cost,
                "params_left": cost,
                "settled_epoch": (settled + seed) / 10,
                "groups": {str(n): {"gates": 10, "open": 5 + (uneven if n else 0)} for n in range(layers)},
                "dependency": {"gates_that_differ": differ} if arm.startswith("dep-l0") else None,
            }
            (folder / "summary.json").write_text(json.dumps(summary))

    return write


def verdicts(tmp_path: Path, **options: Any) -> list[str]:
    return [claim["verdict"] for claim in judge([tmp_path / "runs"], **options)["claims"]]


def reasons(tmp_path: Path, claim: int = 0) -> list[tuple[str, str]]:
    return [(c["verdict"], c["reason"]) for c in judge([tmp_path / "runs"])["claims"][claim]["comparisons"]]


def penalty(weight: float) -> dict[str, Any]:
    return {"gates__budget": None, "penalty__weight": weight}


def test_verdicts(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2, 90.1])
    make("l0-hc", [89.0, 89.2, 89.1])
    make("control", [90.0, 90.1, 90.2])
    make("dep-l0:backward", [90.0, 90.1, 90.0])
    make("dep-l0:lstm", [91.0, 91.0, 91.1])
    result = judge([tmp_path / "runs"])
    assert verdicts(tmp_path)[:5] == ["confirmed", "open", "confirmed", "refuted in this setting", "confirmed"]
    (better,) = result["claims"][0]["comparisons"]
    assert better["found"]["mean"] == pytest.approx(1.0)
    (lstm,) = result["claims"][3]["comparisons"]
    assert (lstm["right"], lstm["reason"]) == ("dep-l0:lstm", "the second is better here")
    w0, backward = result["claims"][0]["control_comparisons"]
    assert (w0["right"], w0["verdict"]) == ("control", "refuted in this setting")  # 0 ± 0.25 excludes 0.3
    assert (backward["left"], backward["right"]) == ("dep-l0:backward", "l0-hc")  # shown, and decides nothing
    assert result["claims"][0]["due_to_dependency"] == "S1 open"  # nobody ran fc-const
    text = page(result, TITLE)
    assert "| Dep-L0 beats L0-HC at equal cost" in text and "95% interval" in text
    assert "89.10 ± 0.10 (n = 3)" in text and str(tmp_path) not in text + json.dumps(result)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.4, 0.5, 0.6], ("confirmed", "")),
        ([0.19, 0.2, 0.21], ("confirmed", "smaller than claimed")),
        ([-0.01, 0.0, 0.01], ("refuted in this setting", "")),
        ([-0.6, -0.5, -0.4], ("refuted in this setting", "the second is better here")),
        ([-0.5, 0.0, 0.5], ("too weak to tell", "")),
    ],
)
def test_refuted_is_told_from_too_weak(
    make: Make, tmp_path: Path, gains: list[float], verdict: tuple[str, str]
) -> None:
    make("dep-l0", [90.0 + gain for gain in gains])
    make("l0-hc", [90.0] * 3)
    assert reasons(tmp_path) == [verdict]


def test_open_where_runs_cannot_tell(make: Make, tmp_path: Path) -> None:
    make("l0-hc", [80.0, 80.2, 80.1])
    make("dep-l0", [90.0, 90.2])
    assert reasons(tmp_path) == [("open", "fewer than 3 seeds")]
    for budget, how, told in (
        (0.1, {"cost": 0.6}, "costs differ by 10.0 points"),
        (0.2, {"layers": 4}, "4 gated layers"),
        (0.3, {"differ": 0}, "inert: no gate would differ with W = 0"),
    ):
        shutil.rmtree(tmp_path / "runs")
        make("l0-hc", [80.0, 80.2, 80.1], gates__budget=budget)
        make("dep-l0", [90.0, 90.2, 90.1], gates__budget=budget, **how)
        assert reasons(tmp_path) == [("open", told)]


def test_one_confirmed_setting_beside_open_ones(make: Make, tmp_path: Path) -> None:
    for budget, seeds in ((0.5, 3), (0.3, 2), (0.2, 1)):
        make("dep-l0", [91.0, 91.1, 91.2][:seeds], gates__budget=budget)
        make("l0-hc", [90.0, 90.1, 90.2], gates__budget=budget)
    assert verdicts(tmp_path)[0] == "confirmed in 1 of 3"
    make("dep-l0", [90.0, 90.1, 90.2], gates__budget=0.1)
    make("l0-hc", [90.0, 90.1, 90.2], gates__budget=0.1)
    assert verdicts(tmp_path)[0] == "confirmed in 1 of 4, refuted in this setting in 1 of 4"


def test_settling_is_counted_in_steps_and_not_by_a_ramp(make: Make, tmp_path: Path) -> None:
    for fields in ({"gates__budget": 0.5}, penalty(1.0)):
        make("dep-l0", [90.0] * 3, settled=1, **fields)
        make("l0-hc", [90.0] * 3, settled=8, **fields)
    assert reasons(tmp_path, 1) == [("open", "the budget's ramp decides when gates settle"), ("confirmed", "")]
    found = judge([tmp_path / "runs"])["claims"][1]["comparisons"][1]
    assert found["figures"]["l0-hc"]["mean"] == 9.0  # steps 8, 9 and 10
    for file in (tmp_path / "runs" / "l0-hc-None-1.0").glob("*/recipe.toml"):
        file.write_text(file.read_text().replace("gates_steps = 1", ""))
    assert reasons(tmp_path, 1)[1] == ("open", "gates were logged once an epoch")


def test_a_layer_that_is_closed_whole_counts_as_closed(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0])
    (file,) = tmp_path.glob("runs/*/*/summary.json")
    groups = {"conv1": {"gates": 8, "open": 0}, "layer1": {"gates": 4, "open": 4}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"groups": groups}))
    (found,) = judge([tmp_path / "runs"])["runs"]
    assert (found["layers"], found["unevenness"]) == (2, 0.5)


def test_due_to_dependency_only_beyond_start_and_steps(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [91.0, 91.1, 91.2], settled=1, **penalty(1.0))
    make("l0-hc", [90.0, 90.1, 90.2], settled=8, **penalty(1.0))
    make("fc-const", [91.0, 91.1, 91.2], settled=4, **penalty(1.0))
    make("l0-hc-start", [90.0, 90.1, 90.2], settled=4, **penalty(1.0))
    accuracy, settling, *_ = judge([tmp_path / "runs"])["claims"]
    assert accuracy["due_to_dependency"] == "S1 no: start and step sizes"
    assert settling["due_to_dependency"] == "S1 yes"
    shutil.rmtree(tmp_path / "runs" / "l0-hc-start-None-1.0")
    assert judge([tmp_path / "runs"])["claims"][1]["due_to_dependency"] == "S1 open"


def test_equal_seeds_are_compared_seed_by_seed(make: Make, tmp_path: Path) -> None:
    """Scores that rise and fall together: means are 4 apart with a spread of 10, and every pair is 4 ± 0.1 apart."""
    make("dep-l0", [74.1, 84.0, 93.9])
    make("l0-hc", [70.0, 80.0, 90.0])
    (paired,) = judge([tmp_path / "runs"])["claims"][0]["comparisons"]
    found = paired["found"]
    assert found["paired"] and paired["verdict"] == "confirmed"
    assert found["error"] == pytest.approx(0.1 / 3**0.5)
    assert (found["low"], found["high"]) == pytest.approx(
        (4 - 4.3027 * 0.1 / 3**0.5, 4 + 4.3027 * 0.1 / 3**0.5), abs=1e-4
    )
    shutil.rmtree(tmp_path / "runs" / "l0-hc")
    make("l0-hc", [70.0, 80.0, 90.0, 80.0])  # four seeds against three: no pairs
    (unpaired,) = judge([tmp_path / "runs"])["claims"][0]["comparisons"]
    assert not unpaired["found"]["paired"] and unpaired["verdict"] == "too weak to tell"
    assert unpaired["found"]["error"] == pytest.approx((9.9**2 / 3 + 200 / 3 / 4) ** 0.5)


def test_several_runs_of_one_seed_count_as_one(make: Make, tmp_path: Path) -> None:
    for under in ("runs", "runs/again"):
        make("dep-l0", [90.0, 90.2], under=under)
        make("l0-hc", [80.0, 80.2], under=under)
    shutil.move(tmp_path / "runs" / "again" / "dep-l0" / "seed-1", tmp_path / "runs" / "again" / "third")
    (found,) = judge([tmp_path / "runs"])["claims"][0]["comparisons"]
    assert found["figures"]["l0-hc"]["n"] == 2 and found["reason"] == "fewer than 3 seeds"


def test_runs_of_several_penalties_are_compared_at_equal_cost(make: Make, tmp_path: Path) -> None:
    """Straight lines, so that the mean over the common costs, 0.45 to 0.55, is the difference at 0.5."""
    for weight, cost in ((0.1, 0.6), (1.0, 0.45)):
        make("dep-l0", [90 + 10 * cost, 91 + 10 * cost, 92 + 10 * cost], cost=cost, **penalty(weight))
    for weight, cost in ((0.2, 0.55), (2.0, 0.4)):  # λ of its own
        make("l0-hc", [82 + 20 * cost, 82.9 + 20 * cost, 84.1 + 20 * cost], cost=cost, **penalty(weight))
    result = judge([tmp_path / "runs"])
    (found,) = result["claims"][0]["comparisons"]
    assert found["setting"] == "S1" and found["over_costs"] == pytest.approx([0.45, 0.55])
    assert found["figures"]["dep-l0"]["mean"] == pytest.approx(96.0)
    assert found["found"]["mean"] == pytest.approx(3.0)  # 95 − 92 at half of the cost
    assert found["found"]["error"] == pytest.approx(0.1 / 3**0.5) and found["found"]["paired"]
    assert found["verdict"] == "confirmed"
    (beside,) = result["claims"][5]["comparisons"]  # the same over parameters, which decides nothing
    assert beside["found"] == found["found"] and not result["claims"][5]["decides"]
    assert "45.0% to 55.0%" in page(result, TITLE) and "Decides nothing." in page(result, TITLE)
    write_claims(result, tmp_path / "claims", TITLE)
    assert "dep-l0" in (tmp_path / "claims" / "curves.svg").read_text()


@pytest.mark.parametrize("other", [0.8, 0.36])
def test_costs_that_hardly_overlap_leave_a_claim_open(make: Make, tmp_path: Path, other: float) -> None:
    for weight in (0.1, 1.0):
        make("dep-l0", [90.0, 90.2, 90.1], cost=0.3 + weight / 10, **penalty(weight))
        make("l0-hc", [80.0, 80.2, 80.1], cost=other + weight / 10, **penalty(weight))
    assert reasons(tmp_path) == [("open", "no common costs near runs of both")]
    shutil.rmtree(next((tmp_path / "runs").glob("l0-hc-None-1.0")))  # one λ is no curve
    assert reasons(tmp_path) == [("open", "no common costs near runs of both")]


@pytest.mark.parametrize(("near", "verdict"), [(0.12, "open"), (0.07, "confirmed")])
def test_a_line_between_distant_costs_decides_nothing(make: Make, tmp_path: Path, near: float, verdict: str) -> None:
    for side in (-1, 1):
        make("dep-l0", [90.0, 90.2, 90.1], cost=0.5 + side * 0.03, **penalty(1.0 - side / 2))
        make("l0-hc", [80.0, 80.2, 80.1], cost=0.5 + side * near, **penalty(1.0 - side / 2))
    assert reasons(tmp_path)[0][0] == verdict


def test_even_ratios_are_claimed_for_resnets_alone(make: Make, tmp_path: Path) -> None:
    for arm in ("dep-l0", "l0-hc"):
        make(arm, [90.0, 90.2, 90.1], model__spec="vgg16", **penalty(1.0))
    assert reasons(tmp_path, 2) == [("open", "the paper claims it for ResNets alone")]


def test_the_control_is_asked_only_where_the_claim_is(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2, 90.1])
    make("control", [80.0, 80.2, 80.1])
    make("dep-l0", [90.0, 90.2, 90.1], gates__budget=0.3)
    make("dep-l0:lstm", [80.0, 80.2, 80.1], gates__budget=0.3)
    assert verdicts(tmp_path)[3] == "confirmed"
    assert judge([tmp_path / "runs"])["claims"][3]["control_comparisons"] == []


def test_the_number_of_reading_processes_is_no_setting(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2, 90.1], data__workers=0)
    make("l0-hc", [80.0, 80.2, 80.1])
    assert verdicts(tmp_path)[0] == "confirmed"


def test_the_command(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("dep-l0", [90.0, 90.2, 90.1])
    make("l0-hc", [90.0, 90.2, 90.1])
    make("dep-l0:lstm", [90.0, 90.2, 90.1])
    out = tmp_path / "claims"
    words = ["paper", "claims", str(tmp_path / "runs"), "--control", "gates.generator=lstm", "--out", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out == (out / "README.md").read_text()
    result = json.loads((out / "claims.json").read_text())
    assert result["claims"][0]["control_comparisons"][0]["right"] == "control"
    assert main(["paper", "claims", str(tmp_path / "runs"), "--method", "dep-l0:gru"]) == 2
    assert "there is no run of 'dep-l0:gru'" in capsys.readouterr().err
    assert main(["paper", "claims", str(tmp_path / "runs"), "--seeds", "0-4"]) == 2
    assert "--seeds takes integers, got '0-4' instead" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"--control takes section\.field=value"):
        judge([tmp_path / "runs"], control="lstm")
    with pytest.raises(InputError, match="holds no run"):
        judge([out])


# -- files of earlier calls --------------------------------------------------------------------------------------------


@pytest.fixture
def earlier(make: Make, tmp_path: Path) -> Path:
    """Return a claims.json of three seeds each, whose run folders are gone."""
    make("dep-l0", [90.0, 90.2, 90.1])
    make("l0-hc", [89.0, 89.2, 89.1])
    write_claims(judge([tmp_path / "runs"]), tmp_path / "earlier", TITLE)
    shutil.rmtree(tmp_path / "runs")
    return tmp_path / "earlier" / "claims.json"


def test_an_earlier_file_gives_the_same_result(earlier: Path) -> None:
    assert judge([earlier]) == json.loads(earlier.read_text())


def test_runs_join_those_of_an_earlier_file(make: Make, tmp_path: Path, earlier: Path) -> None:
    make("control", [90.0, 90.2, 90.3])
    make("dep-l0", [70.0, 70.2, 70.1], gates__budget=0.3)
    result = judge([earlier, tmp_path / "runs"])
    assert [run["setting"] for run in result["runs"]] == ["S1"] * 9 + ["S2"] * 3
    assert result["claims"][0]["verdict"] == "confirmed"
    assert result["claims"][0]["control_comparisons"][0]["verdict"] == "refuted in this setting"
    assert all(run["made_with"]["torch"] for run in result["runs"])
    assert {run["converged"] for run in result["runs"]} == {1.5}
    assert judge([earlier, earlier]) == judge([earlier])  # what is there twice counts once


def test_settings_are_told_apart_by_what_no_description_says(make: Make, tmp_path: Path, earlier: Path) -> None:
    make("l0-hc", [80.0, 80.2, 80.1], search__renew_statistics=False)
    result = judge([earlier, tmp_path / "runs"])
    first, second = result["settings"].values()
    assert first["description"] == second["description"]
    assert (first["recipe"]["search"], second["recipe"]["search"]) != (second["recipe"]["search"],) * 2
    assert len(result["claims"][0]["comparisons"]) == 1


def test_fields_that_recipes_did_not_have_take_their_defaults(make: Make, tmp_path: Path, earlier: Path) -> None:
    told = json.loads(earlier.read_text())
    del told["settings"]["S1"]["recipe"]["search"]["compensate"]
    earlier.write_text(json.dumps(told))
    make("control", [90.0, 90.2, 90.1])
    assert list(judge([earlier, tmp_path / "runs"])["settings"]) == ["S1"]


def test_a_file_with_descriptions_alone_stays_apart(make: Make, tmp_path: Path, earlier: Path) -> None:
    told = json.loads(earlier.read_text())
    for setting in told["settings"].values():
        setting["recipe"] = None
    earlier.write_text(json.dumps(told))
    make("control", [90.0, 90.2, 90.1])
    result = judge([earlier, tmp_path / "runs"])
    assert [setting["recipe"] is None for setting in result["settings"].values()] == [True, False]
    assert result["claims"][0]["verdict"] == "confirmed"
    assert result["claims"][0]["control_comparisons"] == []  # the control's setting may be another one
    write_claims(result, tmp_path / "again", TITLE)
    assert judge([tmp_path / "again" / "claims.json"]) == result
    make("dep-l0", [90.0, 90.2, 90.1])  # the same runs, whose folders turned up: counted once, by their folders
    assert [run["setting"] for run in judge([earlier, tmp_path / "runs"])["runs"]].count("S1") == 3


def test_the_file_in_the_repository_reads() -> None:
    file = Path(__file__).parents[2] / "docs" / "results" / "claims" / "claims.json"
    assert len(judge([file])["runs"]) == len(json.loads(file.read_text())["runs"])


def test_wrong_files(earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the control of .* is 'gates.generator=bias', and here it is 'gates.gen"):
        judge([earlier], control="gates.generator=lstm")
    told = json.loads(earlier.read_text())
    told["runs"][0]["setting"] = "S7"
    earlier.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"not a valid claims\.json: the setting of .* must be one of S1"):
        judge([earlier])
    told["runs"][0] = {"label": "run"}
    earlier.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"runs\[0\].setting is missing"):
        judge([earlier])
    (tmp_path / "none.json").write_text("[")
    with pytest.raises(InputError, match=r"not a valid claims\.json"):
        judge([tmp_path / "none.json"])


def test_what_was_chosen_for_each_method_is_no_difference(make: Make, tmp_path: Path) -> None:
    make("dep-l0", [90.0, 90.2, 90.1], weight_optimizer__lr=0.01)
    make("l0-hc", [80.0, 80.2, 80.1], weight_optimizer__lr=0.02)
    assert len(judge([tmp_path / "runs"])["settings"]) == 2
    (setting,) = judge([tmp_path / "runs"], chosen=["weight_optimizer.lr"])["settings"].values()
    assert setting["description"].endswith("weight_optimizer.lr chosen for each kind of runs")
    with pytest.raises(InputError, match=r"recipes have no field 'weight_optimizer\.rate'"):
        judge([tmp_path / "runs"], chosen=["weight_optimizer.rate"])
    comparison = {"choice": {"field": "weight_optimizer.lr", "values": ["0.01", "0.02"]}}
    (tmp_path / "runs" / "comparison.json").write_text(json.dumps(comparison))
    result = judge([tmp_path / "runs"])
    (setting,) = result["settings"].values()
    assert "weight_optimizer.lr chosen for each kind of runs from 0.01, 0.02" in setting["description"]
    assert result["claims"][0]["verdict"] == "confirmed"
    assert [run["chosen"]["weight_optimizer.lr"] for run in result["runs"]] == [0.01] * 3 + [0.02] * 3
    write_claims(result, tmp_path / "claims", TITLE)
    assert judge([tmp_path / "claims" / "claims.json"]) == result
    assert verdicts(tmp_path, seeds=[0, 1])[0] == "open"


def test_where_files_lie_is_no_part_of_a_setting(make: Make, tmp_path: Path) -> None:
    for number, folder in enumerate(("here", "there")):
        fields = {"data__spec": f"cifar10:/{folder}", "model__weights": f"/{folder}/trained.safetensors"}
        make("dep-l0" if number else "l0-hc", [90.0, 90.2, 90.1], **fields)
    (setting,) = judge([tmp_path / "runs"])["settings"].values()
    assert setting["recipe"]["data"]["spec"] == "cifar10"
    assert setting["recipe"]["model"]["weights"] == "trained.safetensors"
