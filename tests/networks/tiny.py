"""A network, data and recipes so small that a whole run takes a second."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import depl0
from depl0.app.recipes import catalog
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.progress import Reporter
from depl0.app.tasks import ACCURACY, Metric
from depl0.app.training.prune import prune
from depl0.gated import GatedModel

CLASSES = 4
TRAIN, TEST, SIDE = 48, 24, 6


class TinyNet(nn.Module):
    """Two convolutions with batch norm, dropout, and one linear layer."""

    def __init__(self, num_classes: int = CLASSES, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.linear(self.dropout(x.mean((2, 3))))


class ScoresThatExplode(TinyNet):
    """Gives scores that are no numbers from its fifth training step on."""

    def forward(self, images: Tensor) -> Tensor:
        scores = super().forward(images)
        if self.training:
            scores = scores / (self.bn1.num_batches_tracked < 5)
        return scores


def make_data() -> Any:
    """Bright squares in one of four corners, on noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(TRAIN + TEST) % CLASSES
    images = rng.integers(0, 160, (TRAIN + TEST, 1, SIDE, SIDE), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 3 * (label // 2), 3 * (label % 2)
        image[0, top : top + 3, left : left + 3] += 90
    return (images[:TRAIN], labels[:TRAIN]), (images[TRAIN:], labels[TRAIN:])


def tiny_gated(**options: Any) -> GatedModel:
    """The tiny network with gates, always with the same weights."""
    torch.manual_seed(0)
    return depl0.attach(TinyNet(), torch.randn(1, 1, SIDE, SIDE), rng=torch.Generator().manual_seed(0), **options)


def tiny_recipe(**overrides: Any) -> Recipe:
    """A recipe of 3 + 2 epochs of 3 steps, with no dense baseline; fields as ``section__field=value``."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "model.spec": "tests.networks.tiny:TinyNet",
        "data.spec": "tests.networks.tiny:make_data",
        "data.batch_size": 16,
        "gates.budget": 0.5,
        "search.epochs": 3,
        "search.warmup": 0.25,
        "search.dense_baseline": False,
        "finetune.epochs": 2,
        "run.device": "cpu",
        "run.trackers": [],
    }
    base = with_overrides(catalog.get("digits"), fields)
    return with_overrides(base, {name.replace("__", "."): value for name, value in overrides.items()})


class Noisy(Reporter):
    """Remembers everything, and does something at one step of a run."""

    def __init__(self, at_step: int | None = None, act: Callable[[], None] | None = None) -> None:
        self.notes: list[str] = []
        self.phases: list[str] = []
        self.lines: list[dict[str, Any]] = []
        self.steps = 0
        self._at_step, self._act = at_step, act

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, phase: str, epochs: int, steps: int, done: int, metric: Metric = ACCURACY) -> None:
        self.phases.append(phase)

    def step(self) -> None:
        self.steps += 1
        if self.steps == self._at_step and self._act is not None:
            self._act()

    def epoch(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def end(self) -> None:
        pass


def interrupt() -> None:
    """Do what Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


class PowerCut(Exception):
    """Ends a run without warning."""


def cut_power() -> None:
    raise PowerCut


def run(recipe: Recipe, out: Path, reporter: Reporter | None = None, resume: bool = False) -> dict[str, Any]:
    """Carry out a recipe; return its summary."""
    _, summary = prune(recipe, str(out), resume=resume, reporter=reporter)
    return summary
