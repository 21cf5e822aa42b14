"""Coordination of the processes of one run: they agree on settings, stop together, and never wait for a dead one."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from depl0._util.progress import StopRequested, stop_asked, stop_on_signals
from depl0.app.runs.folder import RunFolder
from depl0.app.runs.lock import locked
from depl0.app.runtime.accelerator import any_process
from depl0.errors import Depl0Error, InputError, RunInterruptedError, TrainingError

_LOST = re.compile(
    r"closed by (remote )?peer|reset by peer|connection (closed|refused|reset)|broken pipe|timed? ?out|gloo|nccl"
    r"|socket|no longer (alive|running)|distributed",
    re.IGNORECASE,
)
CONTINUE = "re-run with --resume to continue."


def check_same(accelerator: Accelerator, what: str, content: str) -> None:
    """Raise if a setting differs between processes, by comparing hashes."""
    if accelerator.num_processes == 1:
        return
    digest = hashlib.sha256(content.encode()).hexdigest()
    found = gather_object([digest])
    others = [rank for rank, other in enumerate(found) if other != found[0]]
    if others:
        raise TrainingError(
            f"the processes do not agree on {what}: process {others[0]} has another one than process 0.",
            hint=f"use the same machines and versions for all processes, then {CONTINUE}",
        )


@contextmanager
def exclusive(folder: Path, accelerator: Accelerator) -> Iterator[None]:
    """Hold the lock of a run folder on rank 0. If it cannot be acquired, raise on all ranks."""
    with ExitStack() as stack:
        refused: Depl0Error | None = None
        if accelerator.is_main_process:
            try:
                stack.enter_context(locked(folder))
            except Depl0Error as error:
                refused = error
        (any_refused,) = any_process(accelerator, refused is not None)
        if any_refused:
            raise refused or InputError("the first process cannot use the run folder.")
        yield


@contextmanager
def stoppable(folder: RunFolder) -> Iterator[None]:
    """Handle signals that end a run, and raise an error that names the checkpoint to resume from."""
    try:
        with stop_on_signals():
            yield
    except StopRequested as stop:
        if folder.has_checkpoints:
            raise RunInterruptedError(f"interrupted; {folder.path} has the last checkpoint.", hint=CONTINUE) from stop
        raise RunInterruptedError(
            "interrupted before the first checkpoint.", hint="re-run with --resume to start again."
        ) from stop


@contextmanager
def explain_failures(accelerator: Accelerator, folder: RunFolder) -> Iterator[None]:
    """Translate environment failures (a full disk, a lost process) into actionable errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.EACCES):
            raise
        place = f" ({error.filename})" if error.filename else ""
        intact = " The last checkpoint in it is intact." if folder.has_checkpoints else ""
        raise TrainingError(
            f"{folder.path} cannot be written to: {error.strerror}{place}.{intact}",
            hint=f"free some space or repair the disk, then {CONTINUE}",
        ) from error
    except RuntimeError as error:
        if stop_asked():  # the same signal has ended another process or a data-loading worker
            raise StopRequested from error
        if accelerator.num_processes == 1 or not (isinstance(error, _distributed_error()) or _LOST.search(str(error))):
            raise
        kept = f"; {folder.path} has the last checkpoint" if folder.has_checkpoints else ""
        raise TrainingError(
            f"process {accelerator.process_index} of {accelerator.num_processes} has lost another one, and stops"
            f"{kept}.",
            hint=f"{CONTINUE} The other one's own message says why it ended. This one saw: {_short(str(error))}",
        ) from error


def _short(reason: str, longest: int = 160) -> str:
    """Return the message of torch.distributed in one line, without its source locations."""
    line = re.sub(r"^\[[^\]]*\]:?\s*", "", reason.strip().partition("\n")[0])
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _distributed_error() -> type[Exception]:
    return getattr(torch.distributed, "DistError", Depl0Error)
