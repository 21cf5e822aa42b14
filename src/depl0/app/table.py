"""Tables as data, with raw values for programs and formatted values for people.

All tables of depl0 are written here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from csv import writer
from dataclasses import dataclass
from typing import Any

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One column: the key of its values, its title, and the format of a value."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    is_number: bool = False
    missing: str = MISSING
    """text for a missing value"""


@dataclass(frozen=True)
class Table:
    """Rows of raw values under typed columns. A value that is None is shown as a dash."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    notes: tuple[str, ...] = ()
    """notes below the table"""

    def shown(self) -> list[list[str]]:
        """Return the formatted cells."""
        return [[shown(column, row.get(column.key)) for column in self.columns] for row in self.rows]


def shown(column: Column, value: Any) -> str:
    """Return one formatted cell."""
    return column.missing if value is None or value == "" else column.show(value)


def text_table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> Table:
    """Return a table whose cells are text already; the first column is words, the others figures."""
    columns = [Column(name, name, is_number=place > 0, missing="") for place, name in enumerate(titles)]
    return Table(title, columns, [dict(zip(titles, row, strict=True)) for row in rows], tuple(notes))


def printable(text: str) -> str:
    """Return text without terminal control sequences. Control characters other than tabs and new lines are escaped.

    >>> printable("run\\x1b[2J")
    'run\\\\x1b[2J'
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


# -- for people --------------------------------------------------------------------------------------------------------


def aligned(rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> list[str]:
    """Return a line for each row, in columns of equal width: words to the left, figures to the right.

    >>> aligned([["network", "s"], ["dense", "10.5"]], [False, True])
    ['network     s', 'dense    10.5']
    """
    return ["  ".join(row).rstrip() for row in _padded(rows, is_number)]


def _padded(rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> list[tuple[str, ...]]:
    """Return the rows with the cells of each column padded to its width."""
    columns = []
    for column, number in zip(zip(*rows, strict=True), is_number, strict=True):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if number else cell.ljust(width) for cell in column])
    return list(zip(*columns, strict=True))


def markdown_grid(header: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool] | None = None) -> str:
    """Return rows as Markdown that reads well in a terminal too. By default the first column is words, others figures.

    >>> print(markdown_grid(["network", "s"], [["dense", "1.0"]]))
    | network |   s |
    |:--------|----:|
    | dense   | 1.0 |
    """
    numbers = [place > 0 for place in range(len(header))] if is_number is None else list(is_number)
    first, *others = _padded([list(map(markdown_text, row)) for row in (header, *rows)], numbers)
    rules = [
        "-" * (len(cell) + 1) + ":" if right else ":" + "-" * (len(cell) + 1)
        for cell, right in zip(first, numbers, strict=True)
    ]
    lines = [f"| {' | '.join(row)} |" for row in (first, *others)]
    return "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])


def markdown(table: Table, title: str = "**{}**") -> str:
    """Return a table with its title and notes as Markdown."""
    titles, numbers = zip(*((column.title, column.is_number) for column in table.columns), strict=True)
    grid = markdown_grid(titles, table.shown(), numbers)
    return "\n\n".join([title.format(markdown_text(table.title)), grid, *map(markdown_text, table.notes)]) + "\n"


def markdown_text(text: str) -> str:
    """Return text with Markdown's special characters escaped.

    >>> print(markdown_text("a|b <i> [c](d)"))
    a\\|b &lt;i> \\[c](d)
    """
    text = re.sub(r"[\\|*_`\[]", r"\\\g<0>", text)
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("\n", " ")):
        text = text.replace(sign, safe)
    return text


# -- for programs ------------------------------------------------------------------------------------------------------


def csv(table: Table) -> str:
    """Return all columns with their raw values."""
    text = io.StringIO()
    lines = writer(text, lineterminator="\n")
    lines.writerow([column.key for column in table.columns])
    lines.writerows([row.get(column.key) for column in table.columns] for row in table.rows)
    return text.getvalue()
