"""One stretch of training, described: what is trained, by which optimizers, for how long, with which loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from torch import Tensor, nn

from depl0.app.training.ema import Average
from depl0.app.training.schedules import Schedule
from depl0.search.recovery.distillation import DistillationLoss

PhaseName: TypeAlias = Literal["dense", "search", "finetune"]
PHASES: tuple[PhaseName, ...] = ("dense", "search", "finetune")


@dataclass
class Scheduled:
    """An optimizer with its first learning rate and its schedule."""

    name: str
    optimizer: Any
    lr: float
    schedule: Schedule

    def set_rate(self, epoch: float) -> None:
        """Set the learning rate for a point in time, in epochs."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.schedule(epoch)


class Losses(NamedTuple):
    """What one batch gives."""

    total: Tensor
    """to minimise"""
    task: Tensor
    """without penalties"""
    outputs: Any
    """of the network, to measure"""


@dataclass
class Phase:
    """One stretch of training."""

    name: PhaseName
    model: nn.Module
    optimizers: list[Scheduled]
    """the weights' first"""
    epochs: int
    loss: Callable[[Any, Any], Losses]
    """(what the network gave, targets) -> losses"""
    before_step: Callable[[], bool] = lambda: False
    """is called before every step; tells whether parameters were replaced, so that the network must be wrapped anew"""
    after_epoch: Callable[[], None] = lambda: None
    """is called after an epoch's last step, before the network is evaluated and saved"""
    describe: Callable[[], dict[str, Any]] = dict
    """more to write down after an epoch"""
    gates: Callable[[], dict[str, Any]] | None = None
    """what goes to ``gates.jsonl`` at the start and after an epoch"""
    state: Callable[[], dict[str, Any]] | None = None
    """gives the search's own state, for checkpoints"""
    load_state: Callable[[dict[str, Any]], None] | None = None
    """takes it back, after the model's was loaded"""
    clip_norm: float | None = None
    """of the weights' gradient"""
    average: Average | None = None
    distillation: DistillationLoss | None = None
    some_unused: bool = False
    """whether there are steps in which not every parameter gets a gradient"""
    run: nn.Module | None = None
    """what a step calls, where that is not the model itself but something around it"""

    @property
    def called(self) -> nn.Module:
        """Return what a step calls."""
        return self.run if self.run is not None else self.model


def plain_losses(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Losses]:
    """Return the losses of training without gates."""

    def losses(outputs: Any, targets: Any) -> Losses:
        value = loss(outputs, targets)
        return Losses(value, value, outputs)

    return losses
