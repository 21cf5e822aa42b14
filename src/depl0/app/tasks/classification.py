"""``classification``: one class for every image; cross entropy, and accuracy in percent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.metric import ACCURACY
from depl0.app.data.base import DataInfo
from depl0.app.tasks.base import Task, exact, main_output, register
from depl0.errors import InputError
from depl0.search.recovery.distillation import soft_loss


@register("classification")
@final
@dataclass(frozen=True)
class Classification(Task):
    """One class for every image.

    Args:
        label_smoothing: the fraction of every label that is spread over all classes.
    """

    metric = ACCURACY

    label_smoothing: float = 0.0

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the cross entropy."""
        return nn.functional.cross_entropy(class_scores(outputs).float(), targets, label_smoothing=self.label_smoothing)

    def measure(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the number of correct predictions and the number of images."""
        scores = class_scores(outputs).detach()
        correct = (scores.argmax(1) == targets).sum().to(exact(scores.device))
        return torch.stack([correct, torch.full_like(correct, len(targets))])

    def value(self, sums: Tensor) -> float:
        """Return the accuracy in percent."""
        correct, total = sums.tolist()
        return float(100.0 * correct / total)

    def check(self, outputs: Any, info: DataInfo) -> None:
        """Raise if the network does not return one score per class of the data."""
        classes = info.num_classes
        if classes is None:
            raise InputError(
                f"classification needs one class number for every image, but {info.name} has other targets.",
                hint="use integers from 0 as labels, or pass --task.",
            )
        scores = class_scores(outputs)
        if scores.dim() != 2 or scores.shape[1] != classes:
            raise InputError(
                f"the network gives scores of shape {tuple(scores.shape)}, but the data has {classes} classes.",
                hint=f"build the network with {classes} classes; a callable may take num_classes.",
            )

    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the KL divergence from the dense network's softened predictions."""
        return soft_loss(class_scores(outputs).float(), class_scores(wanted).float(), temperature)


def class_scores(outputs: Any) -> Tensor:
    """Return the class scores of a network that may return more than that (auxiliary heads, dicts)."""
    return main_output(outputs, "class scores")
