"""Formatting of numbers for people."""

from __future__ import annotations

from collections.abc import Callable

from depl0.app.table import MISSING
from depl0.app.tasks import Metric


def count(value: float) -> str:
    """Format an integer with thousands separators.

    >>> count(1493632)
    '1,493,632'
    """
    return f"{value:,.0f}"


def short(value: float) -> str:
    """Shorten a large number.

    >>> short(69_100_000), short(2.58e9), short(640)
    ('69.1M', '2.58B', '640')
    """
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def size(value: float) -> str:
    """Format a number of bytes with a suitable unit.

    >>> size(900), size(263_400), size(102_200_000)
    ('900 B', '263.4 kB', '102.2 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"


def fraction(value: float) -> str:
    """Format a fraction in percent.

    >>> fraction(0.4986)
    '49.9 %'
    """
    return f"{100 * value:.1f} %"


def points(value: float) -> str:
    """Format a change of accuracy, with its sign.

    >>> points(-0.1), points(0.0)
    ('−0.10', '0.00')
    """
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


def change(metric: Metric, value: float) -> str:
    """Format a change of a metric, with its sign and without its unit.

    >>> change(Metric("accuracy", "%"), -0.1), change(Metric("rmse"), -0.0125)
    ('−0.10', '−0.0125')
    """
    return points(value) if metric.unit == "%" else metric.number(value, sign=bool(value)).replace("-", "−")


def milliseconds(value: float) -> str:
    """Format a latency.

    >>> milliseconds(3.285)
    '3.29 ms'
    """
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def duration(seconds: float) -> str:
    """Format the duration of a run.

    >>> duration(42.1), duration(7440), duration(214_200)
    ('42 s', '124 min', '59.5 h')
    """
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 10 * 3600 else f"{seconds / 3600:.1f} h"


def with_spread(mean: float | None, deviation: float | None, show: Callable[[float], str], unit: str = "") -> str:
    """Format a mean over seeds, with its standard deviation if there is one.

    >>> with_spread(91.5, 0.25, "{:.2f}".format, " %"), with_spread(0.5, None, "{:.2f}".format)
    ('91.50 ± 0.25 %', '0.50')
    """
    if mean is None:
        return MISSING
    return show(mean) + ("" if deviation is None else f" ± {show(deviation).lstrip('+')}") + unit
