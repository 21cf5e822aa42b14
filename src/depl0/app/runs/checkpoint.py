"""Checkpoints without pickle. Each is a folder with a tree of numbers in JSON and its tensors in safetensors.

A checkpoint is written to a temporary folder, flushed to disk and renamed, so that a folder with a final name is
complete. Then the pointer ``newest`` is moved to it, and only then are older checkpoints removed. No valid file is ever
changed in place, so an interrupted save leaves the previous checkpoint intact. A checksum covers both files;
checkpoints that do not match it are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor

from depl0._util import io
from depl0._util.io import atomic_write, checksum, flush_folder, write_flushed
from depl0.errors import Depl0Error, FormatError

VERSION = 1
POINTER = "newest"
_NAME = re.compile(r"step-(\d{1,18})(?:-(\d{1,9}))?")
_ASIDE = ".aside-"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint and remove all but the ``keep`` newest ones."""
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    values = write_safetensors(tensors)
    header = {"version": VERSION, "step": step, "tree": tree}
    header["sha256"] = checksum(header, values)
    target = folder / _free_name(folder, step)
    part = folder / f"{_ASIDE}{target.name}"
    part.mkdir()
    try:
        write_flushed(part / "state.safetensors", values)
        write_flushed(part / "state.json", json.dumps(header).encode())
        flush_folder(part)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    flush_folder(folder)
    atomic_write(folder / POINTER, f"{target.name}\n".encode())
    kept = [path for path in _checkpoints(folder) if _order(path) <= _order(target)][-keep:]
    for path in _checkpoints(folder):
        if path not in kept:  # too old; or newer than this one and unusable, because the run would have resumed from it
            _remove(path)
    return target


def load_newest(folder: Path, note: Callable[[str], None] | None = None) -> tuple[int, dict[str, Any]] | None:
    """Return step and state of the newest valid checkpoint, or None if none was ever made.

    Skipped checkpoints are reported to ``note``. If checkpoints exist and none is valid, an error is raised, because
    starting again is the user's decision.
    """
    wrong: dict[Path, str] = {}
    for path in reversed(_checkpoints(folder)):
        try:
            found = _read(path)
        except (_Damaged, OSError) as error:
            wrong[path] = f"{path.name} ({_reason(error)})"
            if note is not None:
                note(f"skipping corrupt checkpoint {wrong[path]}")
            continue
        return found
    if wrong or (folder / POINTER).exists():
        state = f"all in {folder} are corrupt: {', '.join(wrong.values())}" if wrong else f"{folder} is empty"
        raise FormatError(
            f"this run has saved checkpoints, but {state}.",
            hint="restore one from a backup, or start again with another --out.",
        )
    return None


def has_checkpoints(folder: Path) -> bool:
    """Return True if there is any checkpoint, valid or not."""
    return bool(_checkpoints(folder))


@contextmanager
def fitting(folder: Path, step: int) -> Iterator[None]:
    """Explain errors from a valid checkpoint that does not fit this run (handmade or of another version)."""
    try:
        yield
    except Depl0Error:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise FormatError(
            f"the checkpoint of step {step} in {folder} does not fit this run: {reason}.",
            hint="resume with the version of depl0 and the network that it was made with.",
        ) from error


class _Damaged(Exception):
    """Raised if a checkpoint is damaged; the message is the reason."""


def _read(path: Path) -> tuple[int, dict[str, Any]]:
    try:
        header = io.read_json(path / "state.json", io.MAX_LINES)
        values = io.read_bounded(path / "state.safetensors", io.MAX_VALUES)
        if checksum(header, values) != header["sha256"]:
            raise _Damaged("its checksum is wrong")
        if header["version"] > VERSION:
            raise FormatError(f"{path} was written by a newer depl0.", hint="install a newer depl0.")
        state = _unpack(header["tree"], dict(read_safetensors(values)))
        if not isinstance(state, dict):
            raise _Damaged("it holds no state")
        return _step(header["step"]), state
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, RecursionError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}") from error


def _step(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**18:
        raise ValueError(f"{value!r} is no step")
    return value


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)[:200]


# -- names -----------------------------------------------------------------------------------------------------------


def _checkpoints(folder: Path) -> list[Path]:
    """Return the folders with final names, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()), key=_order)


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def _free_name(folder: Path, step: int) -> str:
    """Name a checkpoint after its step.

    If a step is saved again, a number is appended and the first one is unchanged.
    """
    taken = [number for found, number in map(_order, _checkpoints(folder)) if found == step]
    return f"step-{step:09d}" + (f"-{max(taken) + 1}" if taken else "")


def _remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed one is never taken for a valid one."""
    aside = path.with_name(f"{_ASIDE}{path.name}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"{_ASIDE}*"):
        shutil.rmtree(leftover, ignore_errors=True)


# -- content ---------------------------------------------------------------------------------------------------------


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors by their numbers in the file, and dicts by lists of pairs (keys may be numbers)."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_pack(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_unpack(item, tensors) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "value":
        return content
    raise ValueError(f"unknown entry {kind!r}")
