"""Set up device, precision, processes and trackers of a training, through Accelerate."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import nn

from depl0._util.random import random_state, seed_everything
from depl0.app.recipes.recipe import Recipe
from depl0.errors import InputError, TrainingError

_PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def make_accelerator(recipe: Recipe, folder: Path | None = None) -> Accelerator:
    """Return an Accelerator for a recipe, and seed all random generators with the same seed on every rank.

    Trackers write to the folder.
    """
    device = recipe.run.device
    _check_device(device, recipe.run.precision)
    if folder is not None:
        _check_trackers(recipe.run.trackers)
    AcceleratorState._reset_state(True)
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)
    wait = waiting_time()
    try:
        accelerator = Accelerator(
            mixed_precision=_PRECISIONS[recipe.run.precision],
            cpu=device.partition(":")[0] == "cpu" or (device == "auto" and not _has_accelerator()),
            log_with=list(recipe.run.trackers) or None if folder is not None else None,
            project_dir=str(folder) if folder is not None else None,
            kwargs_handlers=[DistributedDataParallelKwargs(), InitProcessGroupKwargs(timeout=wait)],
        )
    except RuntimeError as error:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        reason = str(error).strip().partition("\n")[0][:160]
        raise TrainingError(
            f"the {os.environ['WORLD_SIZE']} processes have not found each other within {wait.total_seconds():g} s.",
            hint="start all of them again, with the same address and port (torchrun does); if they start slowly, set "
            f"DEPL0_TIMEOUT to more seconds. This one saw: {reason}",
        ) from error
    world = os.environ.get("WORLD_SIZE", "1")
    if str(accelerator.num_processes) != world:  # each process would train on its own, in the same folder
        raise TrainingError(
            f"{world} processes were started, but Accelerate runs {accelerator.num_processes}.",
            hint="let torchrun or accelerate launch start them, and leave other ACCELERATE_ variables unset.",
        )
    atexit.register(close_process_group)
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
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps"):
        raise InputError(f"device is {device}, but training runs on cpu, cuda or mps.", hint="use --device auto.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {device}, but torch sees no CUDA device.", hint="use --device cpu, or auto.")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        raise InputError(f"device is {device}, but there are only {torch.cuda.device_count()} CUDA devices.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("device is mps, but torch sees no such device.", hint="use --device cpu, or auto.")
    if precision == "fp16" and (kind == "cpu" or not _has_accelerator()):
        raise InputError("precision fp16 needs a GPU; the device is cpu.", hint="set run.precision to bf16 or fp32.")


def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _check_trackers(trackers: tuple[str, ...]) -> None:
    for tracker in trackers:
        if find_spec(tracker) is None:  # Accelerate would silently leave it out
            raise InputError(f"the tracker {tracker} is not installed.", hint=f"pip install {tracker}.")


# -- random numbers --------------------------------------------------------------------------------------------------


def rng_states(accelerator: Accelerator) -> list[dict[str, Any]]:
    """Return the random state of every process. All processes must call this together."""
    return [random_state()] if accelerator.num_processes == 1 else list(gather_object([random_state()]))


# -- networks and processes ------------------------------------------------------------------------------------------


def prepare(
    accelerator: Accelerator, model: nn.Module, optimizers: Sequence[Any], find_unused_parameters: bool
) -> tuple[nn.Module, list[Any]]:
    """Return a network and its optimizers, prepared by the accelerator."""
    accelerator.ddp_handler.find_unused_parameters = find_unused_parameters
    wrapped, *prepared = accelerator.prepare(model, *optimizers)
    return wrapped, prepared


def any_process(accelerator: Accelerator, *flags: bool) -> list[bool]:
    """Return for each flag whether any process has set it. All processes must call this together."""
    if accelerator.num_processes == 1:
        return list(flags)
    counts = accelerator.reduce(torch.tensor(flags, dtype=torch.float32, device=accelerator.device), reduction="sum")
    return [count > 0 for count in counts.tolist()]


def restore(accelerator: Accelerator, model: nn.Module) -> None:
    """Undo the accelerator's changes to a network: a reference, a mark, and mixed precision around its forward."""
    accelerator.free_memory()
    for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
        model.__dict__.pop(name, None)
