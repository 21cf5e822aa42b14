"""Self-distillation: what is left of the network also learns from what the dense one said.

    loss = (1 − w)·task + w·T²·KL(softmax(dense/T) ‖ softmax(pruned/T))

(Hinton et al., 2015, arXiv:1503.02531) for classifiers; other tasks bring a soft loss of their own. The dense network
is a copy of the host as it came: it is only run, never trained, and costs one more forward pass a step.
"""

from __future__ import annotations

import copy
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0.tasks import Task
from depl0.training.phase import Losses


@final
class Distillation:
    """The dense network as a teacher.

    Args:
        dense: the trained network; a copy of it is kept.
        task: says how a network learns from another one's outputs.
        weight: the share of the loss that the teacher gives, in (0, 1].
        temperature: T, which makes the teacher's answers softer.
    """

    def __init__(self, dense: nn.Module, task: Task, weight: float, temperature: float) -> None:
        self._teacher = copy.deepcopy(dense).eval().requires_grad_(False)
        self._task, self._weight, self._temperature = task, weight, temperature

    def mixed(self, losses: Losses, inputs: Any) -> Tensor:
        """Return a step's loss with the teacher's share in the place of as much of the task's."""
        with torch.no_grad():
            wanted = self._teacher(inputs)
        soft = self._task.distill(losses.outputs, wanted, self._temperature)
        return losses.total + self._weight * (soft - losses.task)
