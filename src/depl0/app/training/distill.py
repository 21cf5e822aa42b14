"""Self-distillation: what is left of the network also learns from what the dense one said.

    loss = (1 − w)·task + w·T²·KL(softmax(dense/T) ‖ softmax(pruned/T))

(Hinton et al., 2015, arXiv:1503.02531) for classifiers; other tasks bring a soft loss of their own. The dense network
is a copy of the host as it came: it is only run, never trained, and costs one more forward pass a step. Where pruning
leaves the outputs of blocks their shape, as inner groups do, those can be learned from too.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0.app.tasks import Task
from depl0.app.training.phase import Losses
from depl0.gated import GatedModel
from depl0.search.recovery.block_outputs import block_names, kept_outputs, relative_error


@final
class Distillation:
    """The dense network as a teacher.

    Args:
        dense: the trained network; a copy of it is kept.
        task: says how a network learns from another one's outputs.
        weight: the share of the loss that the teacher gives, in (0, 1].
        temperature: T, which makes the teacher's answers softer.
        blocks: the weight of the relative error of block outputs, added to the loss; 0: they are not looked at.
    """

    def __init__(self, dense: nn.Module, task: Task, weight: float, temperature: float, *, blocks: float = 0.0) -> None:
        self._teacher = copy.deepcopy(dense).eval().requires_grad_(False)
        self._task, self._weight, self._temperature, self._blocks = task, weight, temperature, blocks
        self._names = block_names(self._teacher) if blocks > 0 else ()

    def watch(self, student: nn.Module) -> AbstractContextManager[dict[str, Tensor]]:
        """Surround the student's forward pass; gives what :meth:`mixed` compares with the teacher's blocks."""
        if not self._names:
            return nullcontext({})
        return kept_outputs(student.host if isinstance(student, GatedModel) else student, self._names)

    def mixed(self, losses: Losses, inputs: Any, found: dict[str, Tensor] | None = None) -> Tensor:
        """Return a step's loss with the teacher's share in the place of as much of the task's."""
        with torch.no_grad(), kept_outputs(self._teacher, self._names) as blocks:
            wanted = self._teacher(inputs)
        soft = self._task.distill(losses.outputs, wanted, self._temperature)
        total = losses.total + self._weight * (soft - losses.task)
        error = relative_error(found or {}, blocks)
        return total if error is None else total + self._blocks * error
