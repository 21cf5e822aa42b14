"""Rows of figures as Markdown, which reads well in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with aligned columns; the first one is words, the others are figures.

    >>> print(markdown(["network", "s"], [["dense", "1.0"]]))
    | network |   s |
    |:--------|----:|
    | dense   | 1.0 |
    """
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    lines = [_line(header, widths), "|" + "|".join(_rule(place, width) for place, width in enumerate(widths)) + "|"]
    return "\n".join(lines + [_line(row, widths) for row in rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]) + " |"


def _rule(place: int, width: int) -> str:
    return ":" + "-" * (width + 1) if place == 0 else "-" * (width + 1) + ":"
