"""The Python in the pages runs as it stands there, on small networks; the tutorial also keeps its promises."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import depl0
from depl0.app.cli.app import main
from tests.support.pages import NAMES, blocks, commands

RUN = [
    "docs/index.md",
    "docs/experiments.md",
    "docs/speed.md",
    "docs/integrations.md",
    *(name for name in NAMES if name.startswith(("docs/guides/", "docs/reference/"))),
]
"""pages whose blocks run one after the other; the README, which shows output, runs below, docs/tasks.md elsewhere"""


class Detector(nn.Module):
    """A backbone with two outputs, and a head for each."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.heads = nn.ModuleList([nn.Conv2d(8, 5, 1), nn.Conv2d(8, 5, 1)])

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        return [head(level) for head, level in zip(self.heads, self.backbone(images), strict=True)]


class Backbone(nn.Module):
    """Two levels of features."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1))
        self.second = nn.Sequential(nn.Conv2d(8, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fine = self.first(images)
        return fine, self.second(fine)


def known_names() -> dict[str, Any]:
    """What a reader of the pages has already: a network, inputs and a loader."""
    torch.manual_seed(0)

    def factory() -> nn.Module:
        layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    images = torch.randn(16, 1, 8, 8)
    loader = [(images[start : start + 4], torch.arange(4)) for start in (0, 4, 8, 12)]
    model = factory()
    gated = depl0.attach(model, images[:2], budget=0.5)
    closed = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    closed[0] = True
    return {
        "torch": torch, "depl0": depl0, "factory": factory, "model": model, "images": images, "detector": Detector(),
        "example_inputs": images[:2], "example": images[:2], "loader": loader, "steps": len(loader),
        "batches": [inputs for inputs, _ in loader], "criterion": nn.functional.cross_entropy,
        "gated": gated, "closed": closed, "optimizer": torch.optim.SGD(gated.weight_parameters(), lr=0.1),
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_python_compiles(name: str) -> None:
    for block in blocks(name):
        if block.language == "python":
            compile(block.text, f"{name}:{block.line}", "exec")


@pytest.mark.parametrize("name", [name for name in RUN if any(block.language == "python" for block in blocks(name))])
def test_python_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = known_names()
    for block in blocks(name):
        if block.language == "python" and block.runs:
            exec(compile(block.text, f"{name}:{block.line}", "exec"), known)


def percentages(text: str) -> list[float]:
    return [float(value) for value in re.findall(r"([\d.]+)%", text)]


def without_numbers(text: str) -> str:
    return re.sub(r"\d[\d.,e-]*", "0", text).strip()


def test_the_output_is_the_one_in_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All words are equal, and all percentages within 6 points: other processors round otherwise."""
    monkeypatch.chdir(tmp_path)
    name, known = "README.md", known_names()
    found = list(blocks(name))
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.language == "python" and block.runs:
            exec(compile(block.text, f"{name}:{block.line}", "exec"), known)
            printed = capsys.readouterr().out
            if printed:
                assert following is not None and not following.language, f"{name}:{block.line} shows no output"
                assert without_numbers(printed) == without_numbers(following.text)
                assert percentages(printed) == pytest.approx(percentages(following.text), abs=6)


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_net", "my_data"):  # other tests have files of these names
        monkeypatch.delitem(sys.modules, name, raising=False)
    known: dict[str, Any] = {}
    for block in blocks("docs/tutorial.md"):
        if block.language == "python" and block.runs:
            if file := re.match(r"# (\w+\.py)\n", block.text):
                (tmp_path / file[1]).write_text(block.text)
            else:
                exec(compile(block.text, f"tutorial:{block.line}", "exec"), known)
    (accuracy,) = re.findall(r"accuracy ([\d.]+)%", capsys.readouterr().out)
    assert float(accuracy) > 90
    assert (
        depl0.cost(known["compact"], known["images"][:1]).macs
        <= 0.33 * depl0.cost(known["model"], known["images"][:1]).macs
    )
    short = {"--epochs": "1", "--finetune-epochs": "1"}
    for words in commands("docs/tutorial.md"):
        if words[0] in ("plan", "prune", "eval"):
            words = [short.get(before, word) for before, word in zip(["", *words], words, strict=False)]
            assert main(words) == 0, capsys.readouterr().err
