"""A training loop of a user's own, around a small network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import depl0


class Net(nn.Module):
    """Two stages with a shortcut, batch norm, and a head: enough for inner and shared groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        y = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(x + self.norm2(self.conv2(y)))
        return self.head(x.mean((2, 3)))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Bright squares in one of four corners; a function of the step alone."""
    rng = torch.Generator().manual_seed(step)
    labels = torch.randint(4, (16,), generator=rng)
    images = torch.rand(16, 1, 6, 6, generator=rng)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 3 * (label // 2), 3 * (label % 2)
        image[:, top : top + 3, left : left + 3] += 1
    return images, labels


STEPS = 40
BATCHES = [batch(1000 + number) for number in range(4)]


LOSS = nn.functional.cross_entropy


def trained_net() -> Net:
    """The network after sixty steps: it knows the corners."""
    torch.manual_seed(0)
    net = Net().train()
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(60):
        x, y = batch(step)
        LOSS(net(x), y).backward()
        adam.step()
        adam.zero_grad()
    return net.eval()


class Loop:
    """A training loop of somebody's own: two optimizers, a scheduler, an average, and a search."""

    def __init__(self, budget: float | None = 0.4, steps: int = STEPS, average: bool = True, **options: Any) -> None:
        torch.manual_seed(0)
        gates = {"budget": budget, "generator": options.pop("generator", "fc"), "round_to": options.pop("round_to", 1),
                 "preset": options.pop("preset", "default")}  # fmt: skip
        self.gated = depl0.attach(Net(), torch.randn(1, 1, 6, 6), rng=torch.Generator().manual_seed(0), **gates).train()
        weights, generator = self.gated.parameter_groups(lr=0.05, steps=steps)
        self.sgd, self.adam = torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([generator])
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.sgd, steps)
        self.average = AveragedModel(self.gated, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        options = {"calibrate": BATCHES, "loss": LOSS, **options}
        averages = [self.average] if average else []
        self.search = depl0.Search(self.gated, steps, optimizers=[self.sgd], averages=averages, **options)
        self.has_average = average

    def train(self, steps: int, forward: Callable[[Tensor], Tensor] | None = None) -> list[int]:
        """Train, and return the steps before which the network became smaller."""
        cuts = []
        for _ in range(steps):
            step = self.search.done
            torch.manual_seed(step)
            if self.search.step():
                cuts.append(step)
            x, y = batch(step)
            LOSS(self.gated(x) if forward is None else forward(x), y).backward()
            for optimizer in (self.sgd, self.adam):
                optimizer.step()
                optimizer.zero_grad()
            self.schedule.step()
            if self.has_average:
                self.average.update_parameters(self.gated)
        return cuts

    def state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in ("gated", "sgd", "adam", "schedule", "average", "search")}
        return copy.deepcopy({name: part.state_dict() for name, part in parts.items()})

    def load(self, state: dict[str, Any]) -> None:
        for name in ("gated", "average", "sgd", "adam", "schedule", "search"):
            getattr(self, name).load_state_dict(state[name])
