"""What a task is: a loss to train by, and a metric to judge by."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depl0._util.metric import Metric
from depl0.app.data.base import DataInfo
from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode, run_checked


class Task(abc.ABC):
    """What a network is trained for. A task holds its settings and no other state.

    ``outputs`` is what the network returns for a batch, ``targets`` what the data has beside the inputs of that batch.
    """

    metric: ClassVar[Metric]
    """what the network is judged by on the test data"""

    @abc.abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss to minimise, the mean over the batch."""

    @abc.abstractmethod
    def measure(self, outputs: Any, targets: Any) -> Tensor:
        """Return a batch's share of the metric: a vector of sums, always of one length.

        The vectors of all batches and processes are added up, so a mean is given as its sum and its count.
        """

    @abc.abstractmethod
    def value(self, sums: Tensor) -> float:
        """Return the metric from the sums of all batches."""

    def check(self, outputs: Any, info: DataInfo) -> None:  # noqa: B027 - nothing is refused unless a task says so
        """Refuse a network whose outputs do not fit the data; called with those of a small batch before training."""

    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the loss against the dense network's outputs on the same batch, the mean over the batch."""
        raise InputError(
            f"{type(self).__name__} does not say how a network learns from another one's outputs.",
            hint="give the task a method distill(outputs, wanted, temperature), or leave --distill out.",
        )

    @property
    def distills(self) -> bool:
        """Tell whether the task says how a network learns from another one's outputs."""
        return type(self).distill is not Task.distill


def check_network(task: Task, model: nn.Module, inputs: Tensor, info: DataInfo) -> None:
    """Refuse a network that does not run on the data, or whose outputs do not fit the task. Its modes are kept."""
    with evaluation_mode(model):
        task.check(run_checked(model, ExampleInputs.of(inputs)), info)


def exact(device: torch.device) -> torch.dtype:
    """Return the type for sums: float64 counts pixels exactly; Apple's GPUs have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def main_output(outputs: Any, what: str) -> Tensor:
    """Return the tensor that counts of a network that may return more (auxiliary heads, dicts).

    >>> main_output({"out": torch.ones(2), "aux": torch.zeros(2)}, "scores")
    tensor([1., 1.])
    """
    if isinstance(outputs, Tensor):
        return outputs
    first = None
    if isinstance(outputs, dict):
        first = outputs.get("out", outputs.get("logits"))
    elif isinstance(outputs, (tuple, list)) and outputs:
        first = outputs[0]
    if isinstance(first, (Tensor, dict, tuple, list)):
        return main_output(first, what)
    raise InputError(
        f"the network must return {what} (a tensor), got {type(outputs).__name__} instead.",
        hint=f"wrap it in a module whose forward returns the {what.split()[-1]}.",
    )
