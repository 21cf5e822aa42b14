"""What pruning changed in a classifier's answers, kept with a run and shown in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from depl0.app.data import open_data
from depl0.app.reports import tables
from depl0.app.reports.report import page
from depl0.app.reports.run import read_run
from tests.networks.tiny import CLASSES, TEST, TinyNet, run, tiny_recipe


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without training: cut, fitted, and recovered without labels."""
    folder = tmp_path_factory.mktemp("answers")
    torch.manual_seed(3)
    network, data = TinyNet().train(), open_data("tests.networks.tiny:make_data")
    adam = torch.optim.Adam(network.parameters(), lr=0.01)
    for epoch in range(40):
        for images, labels in data.train.epoch(epoch):
            torch.nn.functional.cross_entropy(network(images), labels).backward()
            adam.step()
            adam.zero_grad()
    save_file(network.state_dict(), folder / "dense.safetensors")
    fields: dict[str, Any] = {
        "model__weights": str(folder / "dense.safetensors"), "gates__method": "reconstruction", "gates__budget": 0.1,
        "search__epochs": 0, "finetune__epochs": 0, "search__compensate": True, "finetune__recover": 3,
    }  # fmt: skip
    run(tiny_recipe(**fields), folder / "run")
    return folder / "run"


def test_right_answers_are_counted_class_by_class(pruned: Path) -> None:
    summary, found = (json.loads((pruned / name).read_text()) for name in ("summary.json", "answers.json"))
    assert (found["split"], found["images"], len(found["classes"])) == ("test", TEST, CLASSES)
    for network in ("dense", "compact"):
        right = sum(each[network] for each in found["classes"])
        assert 100 * right / TEST == pytest.approx(summary[network]["accuracy"])
    assert all(each["images"] == TEST / CLASSES for each in found["classes"])
    assert found["changed"] == round(TEST * (1 - summary["agreement"]["equal"])) > 0


def test_the_report_shows_what_was_done(pruned: Path) -> None:
    known = read_run(pruned)
    stages = tables.stages(known).rows
    assert [row["stage"] for row in stages] == ["dense network", "at the cut", "recovered without labels"]
    assert stages[-1]["value"] == known.value("compact") and "steps; distance from" in stages[-1]["what"]
    text = page([known])
    assert "Before → at the cut → after" in text and "Predictions that changed" in text and "Every class" in text
    assert "error, cut" in text
    assert "recorded no gates" not in text and "Open probability" not in text and "<h3>Training" not in text
