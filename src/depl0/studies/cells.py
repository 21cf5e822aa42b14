"""What the cells of a study's table show: figures, with their spread over seeds."""

from __future__ import annotations

from depl0._table import MISSING

COSTS = {"macs": "MACs", "params": "parameters", "latency": "latency"}
"""What a budget counts, as tables and pictures call it."""


def percent(accuracy: float | None, spread: float | None = None) -> str:
    """Show an accuracy, and its spread over seeds.

    >>> percent(91.5, 0.25)
    '91.50 ± 0.25 %'
    """
    return MISSING if accuracy is None else f"{_spread(accuracy, spread, '.2f')} %"


def points(change: float | None, spread: float | None = None) -> str:
    """Show a difference of accuracies.

    >>> points(-0.5)
    '-0.50'
    """
    return MISSING if change is None else _spread(change, spread, "+.2f")


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
