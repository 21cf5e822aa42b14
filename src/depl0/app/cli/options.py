"""Command-line options: declaring them, sharing them between commands, checking them and showing their help."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from depl0._util.registry import did_you_mean
from depl0.app.table import printable
from depl0.errors import InputError

Command = Callable[..., None]
UsageError: Any = typer.BadParameter.__base__
"""click's class, which some versions of typer bundle"""
TYPES = {"str": "TEXT", "int": "INTEGER", "float": "FLOAT", "path": "PATH"}
"""type names of some versions of typer, and the conventional names"""
QUIET = typer.Option("--quiet", help="Print only the result.")
JSON = typer.Option("--json", help="Print the result as JSON.")
SET = typer.Option("--set", help="Any recipe field: section.field=value (depl0 recipes fields lists them).")


def echo(text: object, nl: bool = True) -> None:
    """Print text that may contain unencodable or unsafe names."""
    typer.echo(printable(str(text)), nl=nl)


def with_options_of(source: Callable[..., Any], without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return a decorator that adds the parameters of ``source``, except some, to a command as options.

    The command receives them as a dictionary in its first parameter and passes them on: ``source(**options)``.
    """
    shared = {name: parameter for name, parameter in _parameters(source).items() if name not in without}

    def decorate(command: Command) -> Command:
        _, *own = _parameters(command).values()

        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = {name: given.pop(name) for name in shared}
            command(options, **given)

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*shared.values(), *own)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters with their annotations evaluated; the return type may not be imported yet."""
    found = inspect.signature(function).parameters
    return {
        name: parameter.replace(annotation=eval(parameter.annotation, function.__globals__))
        for name, parameter in found.items()
    }


def one_of(what: str, value: str, choices: Sequence[str]) -> str:
    """Return the value if it is one of the choices, and raise an error that names the option otherwise."""
    if value not in choices:
        raise InputError(
            f"{what} must be one of {', '.join(choices)}, got {value!r} instead.", hint=did_you_mean(value, choices)
        )
    return value


def choice(flag: str, choices: Sequence[str], help_: str) -> Any:
    """Return an option that takes one of a few words: its help lists them, and a shell completes them.

    A wrong word raises an error while the command line is parsed, before anything slow is imported.
    """

    def check(value: str | None) -> str | None:
        return value if value is None else one_of(flag, value, choices)

    def complete(incomplete: str) -> list[str]:
        return [word for word in choices if word.startswith(incomplete)]

    return typer.Option(flag, metavar=f"[{'|'.join(choices)}]", help=help_, callback=check, autocompletion=complete)


def read_budgets(text: str) -> tuple[float, ...]:
    """Read budgets that are separated by commas, largest first.

    >>> read_budgets("0.25, 0.5")
    (0.5, 0.25)
    """
    budgets = [_read_budget(word.strip(), text) for word in text.split(",")]
    twice = sorted({budget for budget in budgets if budgets.count(budget) > 1})
    if twice:
        raise InputError(f"--budgets has {twice[0]:g} more than once: {text!r}.", hint="name each budget once.")
    return tuple(sorted(budgets, reverse=True))


def _read_budget(word: str, text: str) -> float:
    expected = "--budgets takes numbers above 0 and at most 1, separated by commas"
    try:
        budget = float(word)
    except ValueError:
        found = f"{word!r} in {text!r}" if word else f"an empty place in {text!r}"
        raise InputError(f"{expected}, got {found} instead.", hint="for example --budgets 0.7,0.5,0.3.") from None
    if not 0 < budget <= 1:
        hint = f"for {budget:g} % write {budget / 100:g}." if 1 < budget <= 100 else "0.5 keeps half of the cost."
        raise InputError(f"{expected}, got {word} instead.", hint=hint)
    return budget


def read_integers(option: str, words: str, example: str) -> list[int]:
    """Read positive integers that are separated by commas.

    >>> read_integers("--batch", "1,32", "1,32")
    [1, 32]
    """
    try:
        numbers = [int(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"{option} takes integers such as {example}, got {words!r} instead.")
    return numbers


def read_assignments(assignments: list[str] | None) -> dict[str, str]:
    """Return the fields passed to ``--set``."""
    fields = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"--set takes section.field=value, got {assignment!r} instead.")
        fields[name.strip()] = value.strip()
    return fields


class GroupedCommand(TyperCommand):
    """A command whose help lists its options in groups by purpose."""

    groups: Mapping[str, Sequence[str]] = {}
    """titles and the parameters of each group; parameters in no group come last"""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options. If an unknown option is a recipe field, the error explains how to set it."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            unknown = str(getattr(error, "option_name", ""))
            is_near = bool(getattr(error, "possibilities", None))  # then do not wait for torch
            if unknown and not is_near and any(parameter.name == "set_" for parameter in self.params):
                from depl0.app.recipes.recipe import SECTIONS

                name = unknown.lstrip("-").replace("-", "_")
                found = [f"--set {title}.{name}=…" for title, kind in SECTIONS.items() if name in kind.model_fields]
                if found:
                    raise UsageError(f"No such option: {unknown}. Write {' or '.join(found)}", ctx) from error
            raise

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
            sections[title].append((_plain_types(record[0]), record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def in_groups(groups: Mapping[str, Sequence[str]]) -> type[GroupedCommand]:
    """Return the class of a command with these groups of options."""
    return type("Grouped", (GroupedCommand,), {"groups": groups})


def _plain_types(flags: str) -> str:
    """Return a line of help with the usual names of types.

    >>> _plain_types("--lr <float>"), _plain_types("--set <list[str]>")
    ('--lr FLOAT', '--set TEXT')
    """
    return re.sub(
        r"<(?:list\[)?(\w+)(?: range)?\]?>", lambda found: TYPES.get(found[1].lower(), found[1].upper()), flags
    )
