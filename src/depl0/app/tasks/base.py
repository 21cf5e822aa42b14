"""Interface of tasks: a loss, a metric with a direction, and a check of the outputs. Registry of tasks."""

from __future__ import annotations

import abc
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from depl0._util.registry import Registry
from depl0._util.user_code import UserCallable, check_concrete, load_callable
from depl0.app.data.base import DataInfo
from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode, run_checked
from depl0.metric import Metric


class Task(abc.ABC):
    """The objective that a network is trained for. A task holds its settings and no other state.

    ``outputs`` are the network's outputs for a batch, and ``targets`` are the targets of that batch in the data.
    """

    metric: Metric
    """the metric of the network on the test data"""

    @abc.abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the loss to minimise, the mean over the batch."""

    @abc.abstractmethod
    def measure(self, outputs: Any, targets: Any) -> Tensor:
        """Return a batch's contribution to the metric: a vector of sums, always of the same length.

        The vectors of all batches and processes are added, so a mean is represented by its sum and its count.
        """

    @abc.abstractmethod
    def value(self, sums: Tensor) -> float:
        """Return the metric from the sums of all batches."""

    def check(self, outputs: Any, info: DataInfo) -> None:  # noqa: B027 - nothing is refused unless a task says so
        """Raise if the network's outputs do not match the data. Called with those of a small batch before training."""

    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the loss against the original model's outputs on the same batch, the mean over the batch."""
        raise InputError(
            f"{type(self).__name__} does not support distillation.",
            hint="add a method distill(outputs, wanted, temperature) to the task, or leave distill.weight out.",
        )

    @property
    def distills(self) -> bool:
        """Return True if the task supports distillation."""
        return type(self).distill is not Task.distill


def check_network(task: Task, model: nn.Module, inputs: Any, info: DataInfo) -> None:
    """Raise if a network does not run on the data, or its outputs do not match the task. Its modes are restored."""
    with evaluation_mode(model):
        task.check(run_checked(model, ExampleInputs.of(inputs)), info)


def exact(device: torch.device) -> torch.dtype:
    """Return the type for sums: float64, which counts pixels exactly, unless the device lacks it (Apple's GPUs)."""
    return torch.float32 if device.type == "mps" else torch.float64


def main_output(outputs: Any, what: str) -> Tensor:
    """Return the main output of a network that may return several (auxiliary heads, dicts).

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


_T = TypeVar("_T", bound=Task)

TASKS: Registry[Any] = Registry("task", own=lambda spec: load_callable(spec, "task"))
"""All built-in tasks by name."""


def register(name: str) -> Callable[[type[_T]], type[_T]]:
    """Return a decorator that registers a task by name: ``@register("classification")``."""
    return TASKS.register(name, lambda task: task)


def find_task(spec: str, /, **settings: object) -> Task:
    """Return the task that a text names, with its settings.

    Args:
        spec: a built-in name, or a :class:`Task` of your own (the class, or a function that returns one):
            ``my_package.tasks:Name`` or ``path/to/file.py:Name``.
        settings: arguments of the class or function.

    >>> find_task("segmentation", ignore_index=0)
    Segmentation(ignore_index=0, label_smoothing=0.0)
    """
    make = TASKS.find(spec)
    if not isinstance(make, UserCallable):
        make = UserCallable("task", spec, make, sys.modules[make.__module__], "")
    check_concrete(make.call, spec, "task")
    make.check_call(settings, f"its signature is {spec}{inspect.signature(make.call)}.")
    task = make(**settings)
    if not isinstance(task, Task):
        raise InputError(
            f"task {spec!r} must be a depl0.app.tasks.Task or return one, got a {type(task).__name__} instead.",
            hint="make the class inherit from depl0.app.tasks.Task.",
        )
    if not isinstance(getattr(task, "metric", None), Metric):
        raise InputError(
            f"task {spec!r} must have a depl0.app.tasks.Metric as its metric.",
            hint='for instance metric = Metric("rmse", higher_is_better=False).',
        )
    return task
