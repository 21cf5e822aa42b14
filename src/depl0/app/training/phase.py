"""A phase of training: its network, optimizers, length and loss."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, final

from torch import Tensor, nn

from depl0.app.tasks import Task
from depl0.app.training.optimizers import Scheduled
from depl0.gated import GatedModel
from depl0.search.recovery.distillation import DistillationLoss
from depl0.search.search import Search

PhaseName: TypeAlias = Literal["dense", "search", "finetune"]
PHASES: tuple[PhaseName, ...] = ("dense", "search", "finetune")


class Losses(NamedTuple):
    """The losses of one batch."""

    total: Tensor
    """the loss to minimise"""
    task: Tensor
    """the task's loss without penalties"""
    outputs: Any
    """the network's outputs, for the metric"""


@dataclass
class Phase(abc.ABC):
    """A phase of training; the loop calls its methods. Subclasses define the loss."""

    name: PhaseName
    model: nn.Module
    optimizers: list[Scheduled]
    """the weights' first"""
    epochs: int
    task: Task
    clip_norm: float | None = None
    """maximum norm of the weights' gradient"""
    distillation: DistillationLoss | None = None
    gated: GatedModel | None = None
    """the network with gates whose state is recorded, if any"""
    search: Search | None = None

    @property
    def called(self) -> nn.Module:
        """Return the module that a step calls: the model, or a wrapper around it."""
        return self.model

    @abc.abstractmethod
    def losses(self, outputs: Any, targets: Any) -> Losses:
        """Return the losses of a batch from the outputs of :attr:`called`."""

    def before_step(self) -> bool:
        """Prepare the next step; returns True if parameters were replaced, so that the network must be re-wrapped."""
        return False

    def after_epoch(self) -> None:  # noqa: B027 - most phases have nothing to do
        """Run after the last step of an epoch, before the network is evaluated and saved."""


@final
class PlainPhase(Phase):
    """Training with the task's loss alone, for the dense or the pruned network."""

    def losses(self, outputs: Any, targets: Any) -> Losses:
        """Return the task's loss."""
        loss = self.task.loss(outputs, targets)
        return Losses(loss, loss, outputs)
