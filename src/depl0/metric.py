"""The metric that networks are evaluated by: its name, its unit, and whether higher values are better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from depl0.errors import FormatError, InputError

RESERVED = frozenset(
    {
        *("budget", "budget_of", "change", "commit", "cost_left", "data", "error", "file_bytes", "latency_ms"),
        *("latency_ms_32", "macs", "macs_left", "method", "model", "name"),
        *("params", "params_left", "run", "seconds", "seed", "status", "steps"),
    }
)
"""names that summaries and studies use for other entries"""
_ABBREVIATIONS = ("auc", "mae", "mse", "psnr", "rmse", "ssim")
_TITLES = {"iou": "IoU", "miou": "mIoU", **{name: name.upper() for name in _ABBREVIATIONS}}


@final
@dataclass(frozen=True)
class Metric:
    """A number that measures the quality of a network.

    Args:
        name: its name in files and tables, a Python identifier: ``accuracy``, ``miou``, ``rmse``.
        unit: ``"%"``, another unit, or an empty string.
        higher_is_better: whether higher values are better; False for errors.

    >>> accuracy, rmse = Metric("accuracy", "%"), Metric("rmse", higher_is_better=False)
    >>> accuracy.show(91.731), rmse.show(0.12345)
    ('91.73 %', '0.1235')
    >>> accuracy.difference(91.73, 90.43), rmse.difference(0.12, 0.13)
    ('-1.30 points', '+0.01')
    """

    name: str
    unit: str = ""
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise InputError(
                f"The name of a metric must be a Python name, got {self.name!r} instead.",
                hint="for instance accuracy, miou or rmse.",
            )
        if self.name in RESERVED:
            raise InputError(
                f"A metric cannot be called {self.name!r}: that is something else in summaries and studies.",
                hint=f"for instance mean_{self.name}.",
            )
        if not isinstance(self.unit, str) or not isinstance(self.higher_is_better, bool):
            raise InputError(
                f"The metric {self.name!r} must have a unit (a text, maybe empty) and say whether higher is better "
                f"(True or False), got {self.unit!r} and {self.higher_is_better!r} instead."
            )

    @property
    def title(self) -> str:
        """Return the name as used in a heading.

        >>> Metric("accuracy").title, Metric("miou").title, Metric("mean_error").title
        ('Accuracy', 'mIoU', 'Mean error')
        """
        words = self.name.replace("_", " ")
        return _TITLES.get(self.name, words[:1].upper() + words[1:])

    @property
    def label(self) -> str:
        """Return the name as used in a sentence or a table.

        >>> Metric("accuracy").label, Metric("miou").label, Metric("mean_error").label
        ('accuracy', 'mIoU', 'mean error')
        """
        return _TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def direction(self) -> str:
        """Describe the direction in which the metric improves."""
        return "higher is better" if self.higher_is_better else "lower is better"

    def number(self, value: float, sign: bool = False) -> str:
        """Format a value without its unit. With ``sign``, always show the sign, as for a difference."""
        plus = "+" if sign else ""
        if self.unit == "%":
            return format(value, f"{plus}.2f")
        return format(value, f"{plus},.0f" if abs(value) >= 10_000 else f"{plus}.{3 if sign else 4}g")

    def show(self, value: float) -> str:
        """Format a value with its unit."""
        return self.number(value) + (f" {self.unit}" if self.unit else "")

    def difference(self, dense: float, compact: float) -> str:
        """Format the pruned model's value minus the original model's."""
        unit = "points" if self.unit == "%" else self.unit
        return self.number(compact - dense, sign=True) + (f" {unit}" if unit else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the ``metric`` entry of ``summary.json``."""
        return asdict(self)


ACCURACY = Metric("accuracy", "%")


def metric_in(summary: Mapping[str, Any]) -> Metric:
    """Return the metric of a summary or of a study's result. Without an entry, the metric is a classifier's accuracy.

    >>> metric_in({"metric": {"name": "rmse", "unit": "", "higher_is_better": False}}).direction
    'lower is better'
    >>> metric_in({}).name
    'accuracy'
    """
    found = summary.get("metric")
    if found is None:
        return ACCURACY
    try:
        return Metric(**found)
    except (TypeError, InputError) as error:
        raise FormatError(
            f"a summary's metric must have a name, a unit and higher_is_better, got {found!r} instead.",
            hint="copy summary.json again from its source.",
        ) from error
