"""Self-distillation: what is left of the network also learns from what the dense one said.

    loss = (1 − w)·task + w·T²·KL(softmax(dense/T) ‖ softmax(pruned/T))

(Hinton et al., 2015, arXiv:1503.02531). The dense network is a copy of the host as it came: it is only run, never
trained, and costs one more forward pass a step.
"""

from __future__ import annotations

import copy
from typing import final

import torch
from torch import Tensor, nn

from depl0.training.evaluate import class_scores


@final
class Distillation:
    """The dense network as a teacher.

    Args:
        dense: the trained network; a copy of it is kept.
        weight: the share of the loss that the teacher gives, in (0, 1].
        temperature: T, which makes the teacher's answers softer.
    """

    def __init__(self, dense: nn.Module, weight: float, temperature: float) -> None:
        self._teacher = copy.deepcopy(dense).eval().requires_grad_(False)
        self._weight, self._temperature = weight, temperature

    def mixed(self, loss: Tensor, task_loss: Tensor, images: Tensor, outputs: object) -> Tensor:
        """Return a step's loss with the teacher's share in the place of as much of the task's."""
        with torch.no_grad():
            wanted = class_scores(self._teacher(images)).float()
        return loss + self._weight * (soft_loss(class_scores(outputs).float(), wanted, self._temperature) - task_loss)


def soft_loss(scores: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Return T²·KL(softmax(wanted/T) ‖ softmax(scores/T)), the mean over the batch.

    >>> scores = torch.tensor([[1.0, 0.0]])
    >>> float(soft_loss(scores, scores + 3, temperature=2.0))
    0.0
    """
    found = torch.log_softmax(scores / temperature, dim=1)
    target = torch.log_softmax(wanted / temperature, dim=1)
    return temperature**2 * nn.functional.kl_div(found, target, reduction="batchmean", log_target=True)
