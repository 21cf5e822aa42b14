"""``regression``: numbers instead of classes; mean squared error, and its root (lower is better)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0.app.data.base import DataInfo
from depl0.app.tasks.base import Task, exact, main_output, register
from depl0.errors import InputError
from depl0.metric import Metric


@register("regression")
@final
@dataclass(frozen=True)
class Regression(Task):
    """Numbers for every image.

    Outputs and targets have the same shape. One number per image may be (batch,) or (batch, 1).
    """

    metric = Metric("rmse", higher_is_better=False)

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the mean squared error."""
        return nn.functional.mse_loss(*_pair(outputs, targets))

    def measure(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the sum and the number of squared errors."""
        found, wanted = _pair(outputs, targets)
        errors = (found.detach() - wanted).to(exact(found.device))
        squares = errors.square().sum()
        return torch.stack([squares, torch.full_like(squares, errors.numel())])

    def value(self, sums: Tensor) -> float:
        """Return the root mean squared error."""
        squares, count = sums.tolist()
        return float((squares / count) ** 0.5)

    def check(self, outputs: Any, info: DataInfo) -> None:
        """Raise if the outputs and the targets differ in shape."""
        found = tuple(main_output(outputs, "numbers").shape[1:])
        if info.target_shape is None:
            raise InputError(
                f"regression needs targets that are one tensor, but those of {info.name} are several.",
                hint="write a task of your own: --task my_task.py:Name.",
            )
        if (found or (1,)) != (info.target_shape or (1,)):
            raise InputError(
                f"the network returned numbers of shape {found} for an image, but the targets of {info.name} have "
                f"shape {tuple(info.target_shape)}.",
                hint="build the network with as many outputs as there are numbers in a target.",
            )

    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the mean squared difference from the original model's outputs. The temperature is not used."""
        return nn.functional.mse_loss(*_pair(outputs, main_output(wanted, "numbers")))


def _pair(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as float tensors of the same shape, because (batch,) and (batch, 1) would broadcast to a square."""
    found = main_output(outputs, "numbers").float()
    return found, targets.float().view_as(found)
