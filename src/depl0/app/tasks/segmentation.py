"""``segmentation``: one class for every pixel; cross entropy over pixels, and mean IoU in percent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.metric import Metric
from depl0.app.data.base import DataInfo
from depl0.app.tasks.base import Task, exact, main_output, register
from depl0.errors import InputError
from depl0.search.recovery.distillation import soft_loss


@register("segmentation")
@final
@dataclass(frozen=True)
class Segmentation(Task):
    """One class for every pixel: scores (batch, classes, height, width), label maps (batch, height, width).

    The metric is the intersection over union of each class in all images together, averaged over the classes that
    occur in the labels or in the predictions.

    Args:
        ignore_index: the label of pixels that are ignored everywhere.
        label_smoothing: the fraction of every label that is spread over all classes.
    """

    metric = Metric("miou", "%")

    ignore_index: int = 255
    label_smoothing: float = 0.0

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the cross entropy of the pixels that are not ignored; 0 if all are ignored."""
        total = nn.functional.cross_entropy(
            _pixel_scores(outputs).float(),
            targets.long(),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return total / (targets != self.ignore_index).sum().clamp(min=1)

    def measure(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the pixel counts of every class in the intersection, in the predictions, and in the labels."""
        scores = _pixel_scores(outputs).detach()
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
        scores = _pixel_scores(outputs)
        if scores.dim() != 4:
            raise InputError(
                f"segmentation needs scores of shape (batch, classes, height, width), but the network gives "
                f"{tuple(scores.shape)}.",
                hint="a network for segmentation ends in a convolution, not in a linear layer.",
            )
        classes, size = scores.shape[1], tuple(scores.shape[2:])
        if info.target_shape is not None and tuple(info.target_shape) != size:
            raise InputError(
                f"the network gives scores of {' x '.join(map(str, size))} pixels, but the targets of {info.name} "
                f"have shape {tuple(info.target_shape)}.",
                hint="targets are label maps (number, height, width); scale the scores up to their size.",
            )
        if info.num_classes is not None and info.num_classes != classes:
            raise InputError(
                f"the network gives scores for {classes} classes, but the data has {info.num_classes}.",
                hint=f"build the network with {info.num_classes} classes; a callable may take num_classes.",
            )

    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the KL divergence from the dense network's softened predictions, the mean over pixels."""
        return soft_loss(_pixel_scores(outputs).float(), _pixel_scores(wanted).float(), temperature)


def _pixel_scores(outputs: Any) -> Tensor:
    return main_output(outputs, "class scores")
