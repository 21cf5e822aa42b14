"""Tasks: what a network is trained for. A loss, and a metric with a direction.

A new built-in task is one new file of this folder, whose class carries :func:`register`.

>>> task = find_task("regression")
>>> task.metric.name, task.metric.higher_is_better
('rmse', False)
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from depl0.tasks.base import Task, check_network, exact, main_output
from depl0.tasks.metric import ACCURACY, Metric, metric_in
from depl0.tasks.registry import TASKS, check_spec, find_task, find_task_for, register

__all__ = [
    "ACCURACY",
    "TASKS",
    "Metric",
    "Task",
    "check_network",
    "check_spec",
    "exact",
    "find_task",
    "find_task_for",
    "main_output",
    "metric_in",
    "register",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
