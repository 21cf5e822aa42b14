"""The processes of one run, started through Accelerate: they agree on settings, stop together, and end in order."""

from __future__ import annotations

import atexit
import errno
import gc
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import nn

from depl0._util.progress import StopRequested, stop_requested
from depl0._util.random import seed_everything
from depl0.app.recipes.recipe import Recipe
from depl0.app.runs.checkpoint import has_checkpoints
from depl0.app.runs.folder import RunFolder, locked
from depl0.app.signals import stop_on_signals
from depl0.errors import Depl0Error, InputError, RunInterruptedError, TrainingError
from depl0.host.network import first_line

_PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
_LOST = re.compile(
    r"closed by (remote )?peer|reset by peer|connection (closed|refused|reset)|broken pipe|timed? ?out|gloo|nccl"
    r"|socket|no longer (alive|running)|distributed",
    re.IGNORECASE,
)
CONTINUE = "re-run with --resume to continue."


# -- start and end ---------------------------------------------------------------------------------------------------


def make_accelerator(recipe: Recipe) -> Accelerator:
    """Return an Accelerator for a recipe, and seed all random generators with the same seed on every rank."""
    device, world, wait = recipe.run.device, os.environ.get("WORLD_SIZE", "1"), waiting_time()
    _check_device(device, recipe.run.precision)
    AcceleratorState._reset_state(True)
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)
    try:
        accelerator = Accelerator(
            mixed_precision=_PRECISIONS[recipe.run.precision],
            cpu=device.partition(":")[0] == "cpu" or (device == "auto" and not _has_accelerator()),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=wait)],
        )
    except RuntimeError as error:
        if world == "1":
            raise
        reason = str(error).strip().partition("\n")[0][:160]
        raise TrainingError(
            f"the {world} processes have not found each other within {wait.total_seconds():g} s.",
            hint="start all of them again, with the same address and port (torchrun does); if they start slowly, set "
            f"DEPL0_TIMEOUT to more seconds. This one saw: {reason}",
        ) from error
    if str(accelerator.num_processes) != world:  # each process would train on its own, in the same folder
        raise TrainingError(
            f"{world} processes were started, but Accelerate runs {accelerator.num_processes}.",
            hint="let torchrun or accelerate launch start them, and leave other ACCELERATE_ variables unset.",
        )
    atexit.register(close_process_group)  # if an error ends the command before a session is opened
    seed_everything(recipe.run.seed)
    return accelerator


def close_process_group() -> None:
    """Destroy the process group and join its communication threads, after releasing everything that refers to them.

    ``DistributedDataParallel`` holds tensors and the process group in reference cycles. A communication thread that
    drops such a tensor while the interpreter shuts down aborts the process.
    """
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def release(accelerator: Accelerator, model: nn.Module) -> None:
    """Undo the accelerator's changes to a network: a reference, a mark, and mixed precision around its forward."""
    accelerator.free_memory()
    for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
        model.__dict__.pop(name, None)


def is_first_process() -> bool:
    """Return True on rank 0. Can be called before the accelerator exists."""
    return os.environ.get("RANK", "0") == "0"


def waiting_time() -> timedelta:
    """Return the timeout for waiting on other processes: DEPL0_TIMEOUT seconds, or 10 minutes by default."""
    text = os.environ.get("DEPL0_TIMEOUT", "600")
    try:
        seconds = float(text)
        if not 0 < seconds < 1e6:
            raise ValueError
    except ValueError:
        raise InputError(f"DEPL0_TIMEOUT must be a number of seconds, got {text!r} instead.") from None
    return timedelta(seconds=seconds)


def _check_device(device: str, precision: str) -> None:
    if device != "auto":
        try:
            if torch.device(device).type not in ("cpu", "cuda", "mps"):
                raise RuntimeError("training runs on cpu, cuda or mps")
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:  # a torch that was built without CUDA asserts
            raise InputError(f"device {device} cannot be used: {first_line(error)}.", "use --device auto.") from error
    if precision == "fp16" and (device.startswith("cpu") or not _has_accelerator()):
        raise InputError("precision fp16 needs a GPU; the device is cpu.", hint="set run.precision to bf16 or fp32.")


def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


# -- agreement -------------------------------------------------------------------------------------------------------


def any_rank(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Return for each flag whether any rank has set it. All ranks must call this together."""
    if accelerator.num_processes == 1:
        return list(flags)
    counts = accelerator.reduce(torch.tensor(flags, dtype=torch.float32, device=accelerator.device), reduction="sum")
    return [count > 0 for count in counts.tolist()]


def on_first_rank(accelerator: Accelerator, act: Callable[[], object]) -> None:
    """Call a function on rank 0 alone. If it refuses, all ranks raise an error instead of waiting for rank 0."""
    refused: Depl0Error | None = None
    if accelerator.is_main_process:
        try:
            act()
        except Depl0Error as error:
            refused = error
    (any_refused,) = any_rank(accelerator, refused is not None)
    if any_refused:
        raise refused or InputError("the first process cannot begin this run.")


@contextmanager
def locked_on_first_rank(folder: Path, accelerator: Accelerator) -> Iterator[None]:
    """Hold the lock of a run folder on rank 0. If it cannot be acquired, raise on all ranks."""
    with ExitStack() as stack:
        on_first_rank(accelerator, lambda: stack.enter_context(locked(folder)))
        yield


def check_same(accelerator: Accelerator, what: str, content: str) -> None:
    """Raise if a setting differs between processes, by comparing hashes."""
    if accelerator.num_processes == 1:
        return
    found = gather_object([hashlib.sha256(content.encode()).hexdigest()])
    others = [rank for rank, other in enumerate(found) if other != found[0]]
    if others:
        raise TrainingError(
            f"the processes do not agree on {what}: process {others[0]} has another one than process 0.",
            hint=f"use the same machines and versions for all processes, then {CONTINUE}",
        )


# -- signals and failures --------------------------------------------------------------------------------------------


@contextmanager
def stoppable(folder: RunFolder) -> Iterator[None]:
    """Handle signals that end a run, and raise an error that names the checkpoint to resume from."""
    try:
        with stop_on_signals():
            yield
    except StopRequested as stop:
        if has_checkpoints(folder.checkpoints):
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
        intact = " The last checkpoint in it is intact." if has_checkpoints(folder.checkpoints) else ""
        raise TrainingError(
            f"{folder.path} cannot be written to: {error.strerror}{place}.{intact}",
            hint=f"free some space or repair the disk, then {CONTINUE}",
        ) from error
    except RuntimeError as error:
        if stop_requested():  # the same signal has ended another process or a data-loading worker
            raise StopRequested from error
        lost = isinstance(error, getattr(torch.distributed, "DistError", ())) or _LOST.search(str(error))
        if accelerator.num_processes == 1 or not lost:
            raise
        kept = f"; {folder.path} has the last checkpoint" if has_checkpoints(folder.checkpoints) else ""
        line = re.sub(r"^\[[^\]]*\]:?\s*", "", str(error).strip().partition("\n")[0])  # without the source's location
        raise TrainingError(
            f"process {accelerator.process_index} of {accelerator.num_processes} has lost another one, and stops"
            f"{kept}.",
            hint=f"{CONTINUE} The other one's own message says why it ended. This one saw: {line[:160]}",
        ) from error
