"""The parts of a run's page below its training curves: a title, a sentence, and tables or pictures.

To add one, write a function that makes a ``Block`` of a run (or None where the run does not have the data), in a file
of its own if it is long, and put it into ``BLOCKS``; the page shows them in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from depl0.app.reports import deployed, results
from depl0.app.reports.run import Run
from depl0.app.table import Table


@dataclass(frozen=True)
class Block:
    """One part of a run's page."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    """a table without rows is left out"""
    figures: tuple[Markup, ...] = ()
    """SVG elements, from ``figures.canvas.inline_svg``"""
    note: str = ""
    """what is missing, and why"""
    kind: str = "sortable"
    """how tables behave: ``sortable``, or ``facts``, which have no head"""


Maker = Callable[[Run, str], Block | None]
"""makes a block of a run; the text is a prefix for the ids of its pictures, different for every run of the page"""


def search(run: Run, prefix: str) -> Block | None:
    """Return when the search settled, and how much its gates depend on each other."""
    table = results.search_facts(run)
    return Block("The search", tables=(table,), kind="facts") if table.rows else None


def deployed_variants(run: Run, prefix: str) -> Block | None:
    """Return the files that ``--then int8`` made: accuracy, size and milliseconds of each."""
    found = deployed.read_deployed(run)
    if found is None:
        return None
    table, figure = deployed.table(run, found), deployed.figure(run, found, f"{prefix}-deployed")
    return Block("Deployed", " ".join(table.notes), (table,), () if figure is None else (figure,))


def layers(run: Run, prefix: str) -> Block:
    """Return the table of layers."""
    table = results.layers(run)
    return Block("Layers", tables=(table,), note="" if table.rows else "Not known until the run has finished.")


def frozen(run: Run, prefix: str) -> Block:
    """Return the channels that could not be pruned."""
    table = results.frozen(run)
    if table.rows:
        return Block("Channels that cannot be pruned, and why", tables=(table,))
    if isinstance(run.get("layers"), list):
        return Block("Channels that cannot be pruned", text="None: every channel had a gate.")
    return Block("Channels that cannot be pruned", note="This run did not record them.")


BLOCKS: tuple[Maker, ...] = (deployed_variants, search, layers, frozen)


def blocks(run: Run, prefix: str) -> list[Block]:
    """Return the parts that a run has."""
    return [block for make in BLOCKS if (block := make(run, prefix)) is not None]
