"""The command's entry point: gathers the commands and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys

import typer

from depl0.cli import (
    ablation,
    bench,
    claims,
    compare,
    data,
    evaluate,
    export,
    latency,
    plan,
    prune,
    recipes,
    report,
    sweep,
    tables,
)
from depl0.errors import Depl0Error, DivergedError, InputError, RunInterruptedError
from depl0.runtime.engine import is_first_process

app = typer.Typer(
    name="depl0",
    help="Make convolutional networks really smaller: learn which channels to close, cut them out, prove it.",
    epilog="With --debug, any command shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("prune")(prune.prune_command)
app.command("sweep")(sweep.sweep_command)
app.command("compare")(compare.compare_command)
app.command("ablation")(ablation.ablation_command)
app.command("claims")(claims.claims_command)
app.command("eval")(evaluate.eval_command)
app.command("export")(export.export_command)
app.command("plan")(plan.plan_command)
app.command("report")(report.report_command)
app.command("tables")(tables.tables_command)
app.command("latency")(latency.latency_command)
app.add_typer(recipes.app, name="recipes")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")

DONE, FAILED, WRONG_USAGE, STOPPED = 0, 1, 2, 75
"""``STOPPED``: asked to stop, and can go on (what sysexits.h calls a temporary failure)"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code. ``--debug``, or DEPL0_DEBUG=1, shows the traceback of an error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words or os.environ.get("DEPL0_DEBUG") == "1"
    words = [word for word in words if word != "--debug"]
    try:
        app(words, prog_name="depl0")  # typer reports wrong usage itself, and always ends with SystemExit
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    except Depl0Error as error:
        if debug:
            raise
        together = isinstance(error, (DivergedError, RunInterruptedError))  # all processes raise these at once
        if is_first_process() or not together:
            print(f"error: {error}", file=sys.stderr)
        if isinstance(error, RunInterruptedError):
            return STOPPED
        return WRONG_USAGE if isinstance(error, InputError) else FAILED
    except (OSError, MemoryError) as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    return DONE
