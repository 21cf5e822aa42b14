"""``classification``: one class for every image. ``segmentation``: one class for every pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from depl0.app.data.base import DataInfo
from depl0.app.tasks.base import Task, exact, main_output, register
from depl0.errors import InputError
from depl0.metric import ACCURACY, Metric
from depl0.search.recovery.distillation import soft_loss


def class_scores(outputs: Any) -> Tensor:
    """Return the class scores of a network that may return more than that (auxiliary heads, dicts)."""
    return main_output(outputs, "class scores")


class _Scored(Task):
    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the KL divergence from the original model's softened predictions, the mean over images or pixels."""
        return soft_loss(class_scores(outputs).float(), class_scores(wanted).float(), temperature)


@register("classification")
@final
@dataclass(frozen=True)
class Classification(_Scored):
    """One class for every image; cross entropy, and accuracy in percent.

    Args:
        label_smoothing: the fraction of every label that is spread over all classes.
    """

    metric = ACCURACY

    label_smoothing: float = 0.0

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the cross entropy."""
        return cross_entropy(class_scores(outputs).float(), targets, label_smoothing=self.label_smoothing)

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
                f"the network returned scores of shape {tuple(scores.shape)}, but the data has {classes} classes.",
                hint=f"build the network with {classes} classes; a callable may take num_classes.",
            )


@register("segmentation")
@final
@dataclass(frozen=True)
class Segmentation(_Scored):
    """One class for every pixel: scores (batch, classes, height, width), label maps (batch, height, width).

    The loss is the cross entropy over pixels. The metric is the intersection over union of each class in all images
    together, averaged over the classes that occur in the labels or in the predictions, in percent.

    Args:
        ignore_index: the label of pixels that are ignored everywhere.
        label_smoothing: the fraction of every label that is spread over all classes.
    """

    metric = Metric("miou", "%")

    ignore_index: int = 255
    label_smoothing: float = 0.0

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the cross entropy of the pixels that are not ignored; 0 if all are ignored."""
        total = cross_entropy(
            class_scores(outputs).float(),
            targets.long(),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return total / (targets != self.ignore_index).sum().clamp(min=1)

    def measure(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the pixel counts of every class in the intersection, in the predictions, and in the labels."""
        scores = class_scores(outputs).detach()
        classes, found = scores.shape[1], scores.argmax(1)
        counts = targets != self.ignore_index
        nowhere = torch.full_like(found, classes)

        def pixels(labels: Tensor, of: Tensor) -> Tensor:
            places = torch.where(of, labels, nowhere).flatten()
            total = torch.zeros(classes + 1, dtype=exact(scores.device), device=scores.device)
            return total.index_add_(0, places, torch.ones_like(places, dtype=total.dtype))[:classes]

        wanted = targets.long()
        return torch.cat([pixels(found, counts & (found == wanted)), pixels(found, counts), pixels(wanted, counts)])

    def value(self, sums: Tensor) -> float:
        """Return the mean IoU in percent, over the classes that occur."""
        both, found, wanted = sums.double().cpu().view(3, -1)
        either = found + wanted - both
        return float(100.0 * (both[either > 0] / either[either > 0]).mean())

    def check(self, outputs: Any, info: DataInfo) -> None:
        """Raise if the network does not return one score per class and pixel."""
        scores = class_scores(outputs)
        if scores.dim() != 4:
            raise InputError(
                f"segmentation needs scores of shape (batch, classes, height, width), but the network returned "
                f"{tuple(scores.shape)}.",
                hint="a network for segmentation ends in a convolution, not in a linear layer.",
            )
        size = tuple(scores.shape[2:])
        if info.target_shape is not None and tuple(info.target_shape) != size:
            raise InputError(
                f"the network returned scores of {' x '.join(map(str, size))} pixels, but the targets of {info.name} "
                f"have shape {tuple(info.target_shape)}.",
                hint="targets are label maps (number, height, width); scale the scores up to their size.",
            )
