"""What the cells of a study's table show: figures, with their spread over seeds."""

from __future__ import annotations

from depl0.app.table import MISSING
from depl0.app.tasks import Metric


def value(metric: Metric, mean: float | None, spread: float | None = None) -> str:
    """Show a metric's value, and its spread over seeds.

    >>> value(Metric("accuracy", "%"), 91.5, 0.25), value(Metric("rmse"), 0.0123)
    ('91.50 ± 0.25 %', '0.0123')
    """
    if mean is None:
        return MISSING
    spreads = "" if spread is None else f" ± {metric.number(spread)}"
    return metric.number(mean) + spreads + (f" {metric.unit}" if metric.unit else "")


def score_titles(metric: Metric, held_out: bool) -> tuple[str, ...]:
    """Return the columns of a metric: where images were held out for choices, on these and on the test images."""
    return (f"validation {metric.label}", f"test {metric.label}") if held_out else (metric.label,)


def change(metric: Metric, mean: float | None, spread: float | None = None) -> str:
    """Show the difference of two values of a metric.

    >>> change(Metric("accuracy", "%"), -0.5), change(Metric("rmse"), 0.0123, 0.001)
    ('-0.50', '+0.0123 ± 0.001')
    """
    if mean is None:
        return MISSING
    return metric.number(mean, sign=True) + ("" if spread is None else f" ± {metric.number(spread)}")


def direction_note(metric: Metric) -> tuple[str, ...]:
    """Return the line below a table whose metric is better when it is lower, against the habit."""
    return () if metric.higher_is_better else (f"{metric.title}: {metric.direction}.",)


def share(value: float | None, spread: float | None = None) -> str:
    """Show a share of a cost.

    >>> share(0.25)
    '25.0%'
    """
    return MISSING if value is None else f"{_spread(100 * value, None if spread is None else 100 * spread, '.1f')}%"


def seconds(value: float | None, spread: float | None = None) -> str:
    """Show a duration.

    >>> seconds(61.4, 2.0)
    '61 ± 2 s'
    """
    return MISSING if value is None else f"{_spread(value, spread, ',.0f')} s"


def _spread(value: float, spread: float | None, form: str) -> str:
    shown = format(value, form)
    return shown if spread is None else f"{shown} ± {format(spread, form.lstrip('+'))}"
