"""``heads``: a network with several outputs, each with a task and a target of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from depl0.app.data.base import DataInfo
from depl0.app.tasks.base import Task, find_task, register
from depl0.errors import InputError
from depl0.metric import ACCURACY


@register("heads")
@final
class Heads(Task):
    """Several outputs: the losses of all heads are added, and the metric is that of one of them.

    Outputs and targets are dicts with the names of the heads, or tuples in the alphabetical order of these names.

    Args:
        judge: the head whose metric the network is evaluated by; the first one by default.
        heads: the task of each head by its name: ``"classification"``, or with a weight ``"0.1*regression"``.

    >>> task = Heads(judge="digit", digit="classification", angle="0.1*regression")
    >>> task.metric.name, task.weights
    ('accuracy', {'angle': 0.1, 'digit': 1.0})
    """

    metric = ACCURACY

    def __init__(self, judge: str = "", **heads: str) -> None:
        if not heads or judge not in ("", *heads):
            raise InputError(
                f"task 'heads' must have a task for each head, and 'judge' must be one of them, got {heads} and judge "
                f"{judge!r} instead.",
                hint='for instance {digit = "classification", angle = "0.1*regression", judge = "digit"}.',
            )
        self.tasks: dict[str, Task] = {}
        self.weights: dict[str, float] = {}
        for name in sorted(heads):
            weight, _, task = str(heads[name]).rpartition("*")
            try:
                self.weights[name] = float(weight or 1)
            except ValueError:
                raise InputError(f"the weight of head {name!r} must be a number, got {weight!r} instead.") from None
            self.tasks[name] = find_task(task)
        self.judge = judge or next(iter(self.tasks))
        self.metric = self.tasks[self.judge].metric

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the weighted sum of the losses of all heads."""
        found, wanted = self._each(outputs, "outputs"), self._each(targets, "targets")
        return self._sum({name: task.loss(found[name], wanted[name]) for name, task in self.tasks.items()})

    def measure(self, outputs: Any, targets: Any) -> Tensor:
        """Return a batch's contribution to the judging head's metric."""
        found, wanted = self._each(outputs, "outputs"), self._each(targets, "targets")
        return self.tasks[self.judge].measure(found[self.judge], wanted[self.judge])

    def value(self, sums: Tensor) -> float:
        """Return the metric of the judging head."""
        return self.tasks[self.judge].value(sums)

    def check(self, outputs: Any, info: DataInfo) -> None:
        """Raise an error if the network does not return an output for each head."""
        self._each(outputs, "outputs")

    def distill(self, outputs: Any, wanted: Any, temperature: float) -> Tensor:
        """Return the weighted sum of the losses of all heads against the outputs of the original model."""
        found, original = self._each(outputs, "outputs"), self._each(wanted, "outputs")
        losses = {name: task.distill(found[name], original[name], temperature) for name, task in self.tasks.items()}
        return self._sum(losses)

    @property
    def distills(self) -> bool:
        """Return True if every head can be distilled."""
        return all(task.distills for task in self.tasks.values())

    def _sum(self, losses: Mapping[str, Tensor]) -> Tensor:
        first, *others = (self.weights[name] * loss for name, loss in losses.items())
        return sum(others, start=first)

    def _each(self, values: Any, what: str) -> Mapping[str, Any]:
        """Return outputs or targets by the names of the heads."""
        names = list(self.tasks)
        if isinstance(values, Mapping) and set(names) <= set(values):
            return values
        if isinstance(values, (tuple, list)) and len(values) == len(names):
            return dict(zip(names, values, strict=True))
        kind = type(values).__name__
        found = f"a dict of {', '.join(map(str, values))}" if isinstance(values, Mapping) else f"a {kind}"
        raise InputError(
            f"task 'heads' needs {what} that are a dict with {', '.join(names)}, or a tuple of {len(names)} in this "
            f"order, got {found} instead."
        )
