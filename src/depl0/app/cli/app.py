"""The command's entry point: gathers the commands and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, metadata
from typing import Annotated

import typer

from depl0 import __version__
from depl0._util.optional import check_installed
from depl0._util.progress import StopRequested
from depl0._util.registry import load_plugins
from depl0.app.cli import about, compare, networks, prune, runs
from depl0.app.cli.options import GroupedCommand, in_groups
from depl0.app.signals import stop_on_signals
from depl0.app.table import printable
from depl0.app.trust import trusting
from depl0.errors import (
    DataError,
    Depl0Error,
    DivergedError,
    DownloadError,
    FormatError,
    GateError,
    InputError,
    NothingToPruneError,
    RunInterruptedError,
    TraceError,
)

EPILOG = """\b
Examples:
  depl0 prune digits
  depl0 prune timm:resnet18 --pretrained --data folder:DIR
  depl0 export runs/digits --to onnx

\b
Any command takes --debug (traceback of an error) and --trust-code (run code
of files from elsewhere).{documentation}"""


def _epilog() -> str:
    """Return the end of the help, with the address of the documentation from the package's metadata."""
    try:
        addresses = metadata("depl0").get_all("Project-URL") or []
    except PackageNotFoundError:  # a source tree that is not installed
        addresses = []
    found = "".join(f" Documentation:\n{address.partition(', ')[2]}" for address in addresses[:1])
    return EPILOG.format(documentation=found)


app = typer.Typer(
    name="depl0",
    help="Prune neural networks: choose channels, remove them, verify the result.",
    epilog=_epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
TRAINING = in_groups(prune.GROUPS)
app.command("prune", cls=TRAINING)(prune.prune_command)
app.command("plan", cls=GroupedCommand)(networks.plan_command)
app.command("eval", cls=GroupedCommand)(runs.eval_command)
app.command("export", cls=GroupedCommand)(runs.export_command)
app.command("report", cls=GroupedCommand)(runs.report_command)
app.command("latency", cls=GroupedCommand)(networks.latency_command)
app.command("compare", cls=TRAINING)(compare.compare_command)
app.command("doctor", cls=GroupedCommand)(about.doctor_command)
app.add_typer(about.app, name="recipes")
for _name, _commands in load_plugins("depl0.commands").items():
    app.add_typer(_commands, name=_name)

DONE, FAILED, WRONG_INPUT, STOPPED = 0, 1, 2, 75
"""``WRONG_INPUT``: flags, files, data or a network that cannot be used; ``STOPPED``: interrupted, can be resumed (a
temporary failure in sysexits.h)"""


STOPPABLE = (["prune"], ["compare"], ["export"])
"""commands that save or clean up when they are stopped; the others end immediately"""
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
"""parts of torch's messages for it, on any device"""
INPUT_ERRORS = (InputError, DataError, FormatError, GateError, NothingToPruneError, TraceError)
"""errors caused by invalid input; all others are run-time failures"""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"depl0 {__version__}")
        raise typer.Exit()


PACKAGES = ("accelerate", "filelock", "jinja2", "markupsafe", "matplotlib", "rich")
"""packages that every command needs, except ``export``, for which the extra of that name is enough"""


@app.callback()
def _shared(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the name of a command."""
    if context.invoked_subcommand not in ("export", "doctor"):
        check_installed(*PACKAGES, purpose="by the command depl0")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code.

    ``--debug``, or DEPL0_DEBUG=1, shows the traceback of an error; ``--trust-code`` runs code of files from elsewhere.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words or os.environ.get("DEPL0_DEBUG") == "1"
    trusted = "--trust-code" in words
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    words = [word for word in words if word not in ("--debug", "--trust-code")]
    try:
        with trusting(trusted), stop_on_signals() if words[:1] in STOPPABLE else nullcontext():
            app(words, prog_name="depl0")  # typer reports wrong usage itself, and always ends with SystemExit
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    except Depl0Error as error:
        if debug:
            raise
        together = isinstance(error, (DivergedError, RunInterruptedError))  # all processes raise these at the same time
        if not together or os.environ.get("RANK", "0") == "0":
            print(f"error: {printable(str(error))}", file=sys.stderr)
        if isinstance(error, RunInterruptedError):
            return STOPPED
        return WRONG_INPUT if isinstance(error, INPUT_ERRORS) and not isinstance(error, DownloadError) else FAILED
    except StopRequested:
        if debug:
            raise
        print("error: interrupted.", file=sys.stderr)
        return STOPPED
    except (OSError, MemoryError) as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {printable(str(error))}", file=sys.stderr)
        return FAILED
    except RuntimeError as error:
        if debug or not any(sign in str(error) for sign in OUT_OF_MEMORY):
            raise
        print("error: out of memory.\nhint: use smaller images or batches.", file=sys.stderr)
        return FAILED
    return DONE
