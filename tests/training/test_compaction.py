"""A network that becomes smaller during its training: when, how much, and with everything it has learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import depl0
import depl0.search.state as closing
from depl0.app.recipes.toml import with_overrides
from depl0.costs import Cost
from depl0.errors import TrainingError
from depl0.search.freezing import freeze_network
from depl0.surgery.record import record_of
from tests.networks.tiny import Noisy, interrupt, run, tiny_gated, tiny_recipe
from tests.support.resume import what_matters

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SEARCH = {"search__epochs": 8, "weight_optimizer__lr": 0.1}
SETTLES = {"search__ramp": 0.3}
RECIPES: dict[str, dict[str, Any]] = {
    "progressive": {},
    "progressive, penalty": {
        "penalty__weight": 2e-3,
        "penalty__kind": "macs",
        "gates__generator": "independent",
        "gate_optimizer__lr": 0.8,
        "search__clip_norm": 1.0,
    },
    "progressive, gated fine-tuning": {"finetune__gated": True, "gates__budget": 0.3},
    "progressive, rounded": {"gates__round_to": 2},
    "never": {"search__cut": "never", **SETTLES},
}


def recipe_of(name: str) -> Any:
    return tiny_recipe(**{**SEARCH, **RECIPES[name]})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every recipe, run without a stop."""
    folders = {}
    for name in RECIPES:
        folders[name] = tmp_path_factory.mktemp("whole") / "run"
        run(recipe_of(name), folders[name])
    return folders


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == kind]


def epochs(folder: Path, phase: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == phase and "event" not in line]


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("progressive")])
def test_the_network_shrinks_by_a_tenth_or_more_at_a_time(name: str, whole: dict[str, Path]) -> None:
    summary = summary_of(whole[name])
    found = events(whole[name], "compaction")
    assert [{k: line[k] for k in ("epoch", "step", "macs_share")} for line in found] == summary["compactions"]
    during = [line["macs_share"] for line in found if line["phase"] == "search"]
    assert during
    for before, after in zip([1.0, *during], during, strict=False):
        assert after <= 0.9 * before + 1e-12
    assert summary["macs_left"] <= found[-1]["macs_share"] + 1e-12
    gone = [line["gates_gone"] for line in found]
    assert gone == sorted(gone) and gone[0] > 0
    total = sum(group["gates"] for group in summary["groups"].values())
    still_open = sum(group["open"] for group in summary["groups"].values())
    assert gone[-1] <= total - still_open
    later = [line for line in epochs(whole[name], "search") if line["step"] > found[0]["step"]]
    assert all(sum(line["open_gates"].values()) <= total - found[0]["gates_gone"] for line in later)


def test_the_budget_is_kept_and_used(whole: dict[str, Path]) -> None:
    for name, budget in (("progressive", 0.5), ("progressive, gated fine-tuning", 0.3)):
        reached = summary_of(whole[name])["budget_reached"]
        assert budget - 0.1 < reached <= budget, name
        last = epochs(whole[name], "search")[-1]
        assert last["expected"]["macs_share"] == pytest.approx(budget, abs=0.1)


def test_rounded_networks_have_rounded_sizes_all_the_way(whole: dict[str, Path]) -> None:
    folder = whole["progressive, rounded"]
    assert events(folder, "compaction")[0]["phase"] == "search"
    for line in (json.loads(text) for text in (folder / "gates.jsonl").read_text().splitlines()):
        assert all(len(gates) % 2 == 0 for gates in line["open"].values())
    summary = summary_of(folder)
    assert all(group["open"] % 2 == 0 for group in summary["groups"].values())
    assert 0.25 < summary["budget_reached"] <= 0.5  # steps of two channels are large in a network this small


def test_never_leaves_the_network_whole_until_everything_is_trained(whole: dict[str, Path]) -> None:
    summary = summary_of(whole["never"])
    assert summary["compactions"] == [] == events(whole["never"], "compaction")
    assert summary["budget_reached"] <= 0.5
    state = sorted((whole["never"] / "checkpoints").glob("step-*"))[-1]
    dense = sum(p.numel() for p in tiny_gated().host.parameters())
    assert state.stat().st_size > 2 * 4 * dense  # weights and momentum of all channels, to the end


@pytest.mark.parametrize("name", RECIPES)
def test_the_files_of_a_run_give_the_same_network(name: str, whole: dict[str, Path]) -> None:
    from tests.networks.tiny import TinyNet

    compact = depl0.load(whole[name] / "compact", TinyNet)
    record, summary = record_of(compact), summary_of(whole[name])
    assert record is not None and record.dense == Cost(summary["dense"]["params"], summary["dense"]["macs"])
    assert record.compact == Cost(summary["compact"]["params"], summary["compact"]["macs"])


@pytest.mark.parametrize(
    ("name", "offsets"),
    [
        ("progressive", [0]),  # the step before the first compaction
        ("progressive", [1, 10]),  # after it, and in the end
        ("progressive, gated fine-tuning", [2, 14]),
        ("progressive, rounded", [1]),
        ("never", [1]),
    ],
)
def test_a_run_resumes_across_compactions(
    name: str, offsets: list[int], whole: dict[str, Path], tmp_path: Path
) -> None:
    out, done = tmp_path / "run", 0
    happened = events(whole[name], "compaction") or events(whole[name], "freezing")
    for step in (min(happened[0]["step"] + offset, 29) for offset in offsets):
        with pytest.raises(TrainingError, match=f"interrupted at step {step};"):
            run(recipe_of(name), out, Noisy(at_step=step - done, act=interrupt), resume=done > 0)
        done = step
    run(recipe_of(name), out, resume=True)
    assert what_matters(out) == what_matters(whole[name])


def test_nothing_is_cut_that_would_not_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "LEAST_GAIN", 0.95)
    assert run(tiny_recipe(**SEARCH), tmp_path / "run")["compactions"] == []


def test_a_group_is_never_cut_out_as_a_whole_while_gates_still_move() -> None:
    gated = tiny_gated(generator="independent")
    group = gated.plan.groups[1]
    gated.start_from(torch.arange(gated.plan.num_gates).float() - 20)
    closing = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    closing[group.gates] = True
    for _ in range(2):
        can_go = gated.snapshot().removable(closing)
        assert can_go[group.gates].tolist() == [True] * (group.size - 1) + [False]  # the best one stays
        assert int(can_go.sum()) == group.size - 1
        gated.remove(can_go)
        gated.cut()
        closing = closing & ~can_go
        assert not gated.snapshot().removable(closing).any()
        closing[group.gates] = True


def test_frozen_gates_leave_those_that_are_gone_closed() -> None:
    gated = tiny_gated(generator="independent", budget=0.6)
    best = gated.log_alpha().detach().argsort(descending=True)
    gone = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    gone[best[:3]] = True
    gated.remove(gone)
    gated.cut()
    frozen = freeze_network(gated, gated.config.changed(budget=0.6))
    assert not frozen.gates[gone].any()
    assert 0.4 < gated.snapshot().share(frozen.gates > 0, "macs") <= 0.6


def test_a_run_that_shrinks_channels_last_goes_on_to_the_bit(tmp_path: Path) -> None:
    recipe = with_overrides(recipe_of("progressive"), {"run.channels_last": True})
    summary = run(recipe, tmp_path / "whole")
    assert summary["compactions"] and summary["channels_last"]
    after = summary["compactions"][0]["step"] + 1
    with pytest.raises(TrainingError, match="interrupted"):
        run(recipe, tmp_path / "run", Noisy(after, interrupt))
    run(recipe, tmp_path / "run", resume=True)
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "whole")
