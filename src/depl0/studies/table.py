"""A table of text, for the terminal and for Markdown alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

MISSING = "–"
COSTS = {"macs": "MACs", "params": "parameters", "latency": "latency"}
"""What a budget counts, as tables and pictures call it."""


@final
@dataclass(frozen=True)
class Table:
    """Columns, rows of text, and what has to be said below them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows)

    def markdown(self) -> str:
        """Return the table as a Markdown page. The first column is words, the others are numbers or short words.

        >>> print(Table("Sizes", ("name", "size"), (("a", "1"),)).markdown())
        # Sizes
        <BLANKLINE>
        | name | size |
        |---|---|
        | a | 1 |
        <BLANKLINE>
        """
        lines = [f"# {self.title}", "", _line(self.columns), "|" + "---|" * len(self.columns)]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


# -- cells -----------------------------------------------------------------------------------------------------------


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
