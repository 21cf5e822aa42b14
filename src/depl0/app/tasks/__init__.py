"""Tasks that networks are trained for: a loss, and a metric with a direction.

To add a built-in task, decorate a class in a new file of this folder with :func:`register`.

>>> task = find_task("regression")
>>> task.metric.name, task.metric.higher_is_better
('rmse', False)
"""

from __future__ import annotations

from depl0._util.registry import import_modules_of
from depl0.app.tasks.base import (
    TASKS,
    Task,
    check_network,
    exact,
    find_task,
    main_output,
    register,
)
from depl0.metric import ACCURACY, Metric, metric_in

__all__ = [
    "ACCURACY",
    "TASKS",
    "Metric",
    "Task",
    "check_network",
    "exact",
    "find_task",
    "main_output",
    "metric_in",
    "register",
]

import_modules_of(__name__)
