"""A network in every format whose packages are installed, and one table of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from depl0.app.deploy.source import Source
from depl0.app.deploy.torch_folder import ExportedFolder, export_folder
from depl0.app.table import aligned
from depl0.errors import Depl0Error, ExportError, InputError, NotInstalledError
from depl0.export.checked import Exported, write_checked
from depl0.export.int8.quantize import Note
from depl0.export.targets import Request, names, target
from depl0.latency.measure import summarise

ROUNDS = 50
"""calls of each file that are timed"""
TORCH = "torch"
"""the format that is a folder"""


@dataclass(frozen=True)
class Row:
    """A format with the file that was written, or the reason why there is none."""

    format: str
    done: Exported | ExportedFolder | None
    reason: str = ""


def export_all(
    source: Source,
    folder: Path,
    name: str,
    dynamic_batch: bool = False,
    note: Note = lambda text: None,
) -> list[Row]:
    """Write ``folder/name`` in every format that is installed; one that fails does not keep the others from it.

    Raises:
        ExportError: no format could be written.
        InputError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the folder {folder} cannot be made: {error.strerror}.", hint="choose another.") from error
    request = Request(source.module, source.example, source.metadata, dynamic_batch=dynamic_batch)
    rows = []
    for kind in (*names(), TORCH):
        note(f"writing {kind} …")
        try:
            if kind == TORCH:
                rows.append(Row(kind, export_folder(source, folder / f"{name}-torch", rounds=ROUNDS)))
            else:
                file = folder / f"{name}{target(kind).suffix}"
                rows.append(Row(kind, write_checked(target(kind), request, file, ROUNDS)))
        except NotInstalledError as error:
            rows.append(Row(kind, None, f"not installed ({error.hint})"))
        except Depl0Error as error:
            rows.append(Row(kind, None, error.message))
    if all(row.done is None for row in rows):
        raise ExportError(f"no format could be written: {'; '.join(f'{row.format}: {row.reason}' for row in rows)}")
    return rows


def formats_table(rows: list[Row]) -> str:
    """Return the files with their sizes, agreement and milliseconds, and why others are missing."""
    cells = [["format", "file", "bytes", "largest error", "ms", "±"]]
    for row in rows:
        if row.done is not None:
            timed = summarise(row.done.seconds) if row.done.seconds else None
            times = ["", ""] if timed is None else [f"{1000 * timed.median:.3f}", f"{1000 * timed.spread:.3f}"]
            cells.append([row.format, row.done.path.name, f"{row.done.size:,}", f"{row.done.max_error:.1g}", *times])
    lines = aligned(cells, [title not in ("format", "file") for title in cells[0]])
    lines.append("largest error: relative to the network's outputs; ms: median, batch 1, each in a process of its own")
    return "\n".join([*lines, *(f"no {row.format}: {row.reason}" for row in rows if row.done is None)])
