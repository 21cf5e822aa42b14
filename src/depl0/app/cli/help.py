"""Help with the options in groups, and the ordinary names of types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand

TYPES = {"str": "TEXT", "int": "INTEGER", "float": "FLOAT", "path": "PATH"}
"""what some versions of typer write, and what command lines have always called it"""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by what they are for."""

    groups: Mapping[str, Sequence[str]] = {}
    """titles, and the parameters below each; parameters that are in none come last"""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options group after group."""
        others = "Run" if self.groups else "Options"
        group_of = {name: title for title, names in self.groups.items() for name in names}
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *self.groups, others)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            title = "Arguments" if is_argument else group_of.get(str(parameter.name), others)
            sections[title].append((_ordinary(record[0]), record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def in_groups(groups: Mapping[str, Sequence[str]]) -> type[GroupedCommand]:
    """Return the class of a command with these groups of options."""
    return type("Grouped", (GroupedCommand,), {"groups": groups})


def _ordinary(flags: str) -> str:
    """Write the types of a line of help.

    >>> _ordinary("--lr <float>"), _ordinary("--set <list[str]>")
    ('--lr FLOAT', '--set TEXT')
    """
    return re.sub(
        r"<(?:list\[)?(\w+)(?: range)?\]?>", lambda found: TYPES.get(found[1].lower(), found[1].upper()), flags
    )
