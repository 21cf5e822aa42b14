"""Checkpoints without pickle. Each is one safetensors file: its tensors, and a tree of all other values as JSON bytes.

A file is written atomically, and only then are older checkpoints removed, so that an interrupted save leaves the
previous checkpoint intact. Its name has the step and a hash of its content; files that do not match it are skipped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor

from depl0._util import io
from depl0._util.io import atomic_write
from depl0.errors import Depl0Error, FormatError

VERSION = 2
_NAME = re.compile(r"step-(\d{9,18})-([0-9a-f]{16})\.safetensors")
_TREE = "tree"
"""name of the tensor with the JSON bytes; all others are named by numbers"""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint and remove all but the ``keep`` newest ones."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps({"version": VERSION, "state": _pack(state, tensors)})
    tensors[_TREE] = torch.frombuffer(bytearray(tree.encode()), dtype=torch.uint8)
    content = write_safetensors(tensors)
    target = folder / f"step-{step:09d}-{_digest(content)}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.part"):  # of a save that was killed
        leftover.unlink()
    atomic_write(target, content)
    kept = [target, *(path for path in reversed(_checkpoints(folder)) if _step(path) < step)][:keep]
    for path in _checkpoints(folder):
        if path not in kept:  # too old, the same step again, or unusable: the run would have resumed from a later one
            path.unlink()
    return target


def load_newest(folder: Path, note: Callable[[str], None] | None = None) -> tuple[int, dict[str, Any]] | None:
    """Return step and state of the newest valid checkpoint, or None if none was ever made.

    Skipped checkpoints are reported to ``note``. If there are files and none is a valid checkpoint, an error is raised,
    because starting again is the user's decision.
    """
    wrong: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            return _step(path), _read(path)
        except (_Damaged, OSError) as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)[:200]
            wrong.append(f"{path.name} ({reason})")
            if note is not None:
                note(f"skipping corrupt checkpoint {wrong[-1]}")
    if wrong:
        raise FormatError(
            f"this run has saved checkpoints, but all in {folder} are corrupt: {', '.join(wrong)}.",
            hint="restore one from a backup, or start again with another --out.",
        )
    return None


def has_checkpoints(folder: Path) -> bool:
    """Return True if there is any checkpoint, valid or not."""
    return bool(_checkpoints(folder))


@contextmanager
def wrap_content_errors(what: str) -> Iterator[None]:
    """Explain errors from readable files with unexpected content, such as those of another version."""
    try:
        yield
    except Depl0Error:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        raise FormatError(
            f"{what} cannot be used: {reason}.", hint="use the version of depl0 and the network that it was made with."
        ) from error


class _Damaged(Exception):
    """Raised if a checkpoint is damaged; the message is the reason."""


def _read(path: Path) -> dict[str, Any]:
    try:
        content = io.read_bounded(path, io.MAX_VALUES)
        if not path.stem.endswith(_digest(content)):
            raise _Damaged("its checksum is wrong")
        tensors = dict(read_safetensors(content))
        tree = json.loads(tensors.pop(_TREE).numpy().tobytes())
        if tree["version"] > VERSION:
            raise FormatError(f"{path} was written by a newer depl0.", hint="install a newer depl0.")
        state = _unpack(tree["state"], tensors)
        if not isinstance(state, dict):
            raise _Damaged("it holds no state")
        return state
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, RecursionError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_step)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


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
