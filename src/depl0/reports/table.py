"""A table as data: raw values for programs, shown ones for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MISSING = "–"
FORMATS = ("text", "md", "json", "csv", "latex")


@dataclass(frozen=True)
class Column:
    """One column: the key of its values, its title, and how a value is shown."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    is_number: bool = False
    hidden: bool = False
    """only for programs"""


@dataclass(frozen=True)
class Table:
    """Rows of raw values under typed columns. A value that is None is shown as a dash."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    note: str = ""
    marked: frozenset[int] = field(default_factory=frozenset)
    """rows that stand out: the user's own"""

    @property
    def visible(self) -> list[Column]:
        """Return the columns for people."""
        return [column for column in self.columns if not column.hidden]

    def shown(self) -> list[list[str]]:
        """Return the cells as people read them."""
        return [[shown(column, row.get(column.key)) for column in self.visible] for row in self.rows]


def shown(column: Column, value: Any) -> str:
    """Return one cell as people read it."""
    return MISSING if value is None or value == "" else column.show(value)


def render(table: Table, kind: str) -> str:
    """Return a table in one of ``FORMATS``, with a line's end."""
    renderers = {"text": _text, "md": _markdown, "json": _json, "csv": _csv, "latex": _latex}
    return renderers[kind](table)


def _text(table: Table) -> str:
    cells = [[column.title for column in table.visible], *table.shown()]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.visible))]
    lines = [table.title]
    for number, row in enumerate(cells):
        parts = [
            text.rjust(width) if column.is_number else text.ljust(width)
            for column, text, width in zip(table.visible, row, widths, strict=True)
        ]
        mark = "* " if number - 1 in table.marked else "  "
        lines.append((mark + "  ".join(parts)).rstrip())
    if table.marked:
        lines.append("* your run")
    return "\n".join([*lines, *([table.note] if table.note else [])]) + "\n"


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_markdown_cell(cell) for cell in cells) + " |"

    rules = ["---:" if column.is_number else "---" for column in table.visible]
    lines = [f"**{_markdown_cell(table.title)}**", "", line([c.title for c in table.visible])]
    lines.append("|" + "|".join(rules) + "|")
    for number, row in enumerate(table.shown()):
        text = line(row)
        lines.append(_bold(text) if number in table.marked else text)
    return "\n".join([*lines, *(["", _markdown_cell(table.note)] if table.note else [])]) + "\n"


def _markdown_cell(text: str) -> str:
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("_", "\\_"), ("\n", " ")):
        text = text.replace(sign, safe)
    return text


def _bold(line: str) -> str:
    return "| " + " | ".join(f"**{cell}**" for cell in line[2:-2].split(" | ")) + " |"


def _json(table: Table) -> str:
    rows = []
    for number, row in enumerate(table.rows):
        entry = {column.key: row.get(column.key) for column in table.columns}
        rows.append({**entry, "yours": number in table.marked} if table.marked else entry)
    return json.dumps({"title": table.title, "rows": rows, "note": table.note or None}, indent=2) + "\n"


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.key for column in table.columns] + (["yours"] if table.marked else []))
    for number, row in enumerate(table.rows):
        cells = ["" if row.get(c.key) is None else _raw(row[c.key]) for c in table.columns]
        writer.writerow(cells + ([int(number in table.marked)] if table.marked else []))
    return buffer.getvalue()


def _raw(value: Any) -> Any:
    """Return a number as a plain one, whatever it remembers of how it was printed."""
    return float(value) if isinstance(value, float) else value


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "→": r"$\rightarrow$", "−": "$-$", "×": r"$\times$",
    "–": "--", "λ": r"$\lambda$", "Δ": r"$\Delta$", "·": r"$\cdot$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Return a text in which no sign means anything to LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _latex(table: Table) -> str:
    """Return a table for the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(cells) + r" \\"

    lines = [
        r"\begin{table}[ht]",
        r"  \centering",
        rf"  \caption{{{latex_text(table.title)}.{' ' + latex_text(table.note) if table.note else ''}}}",
        rf"  \begin{{tabular}}{{{''.join('r' if c.is_number else 'l' for c in table.visible)}}}\toprule",
        line([latex_text(column.title) for column in table.visible]) + r"\midrule",
    ]
    for number, row in enumerate(table.shown()):
        cells = [latex_text(cell) for cell in row]
        lines.append(line([rf"\textbf{{{cell}}}" for cell in cells] if number in table.marked else cells))
    return "\n".join([*lines, r"  \bottomrule", r"  \end{tabular}", r"\end{table}"]) + "\n"
