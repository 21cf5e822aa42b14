"""Checkpoints without pickle: a tree of numbers in JSON, its tensors in safetensors, each checkpoint a folder.

A checkpoint is written aside, flushed to disk and renamed, so that a folder with the final name is always whole; its
checksum, which covers both files, is verified when it is read, and the newest whole one is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor

from depl0.disk import write_flushed
from depl0.errors import FormatError

VERSION = 1
_PREFIX = "step-"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint and remove all but the ``keep`` newest ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".aside-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, tensors)
    values = write_safetensors(tensors)
    header = {"version": VERSION, "step": step, "tree": tree}
    header["sha256"] = _checksum(header, values)
    target = folder / f"{_PREFIX}{step:09d}"
    part, former = folder / f".aside-{step:09d}", folder / f".aside-{step:09d}-former"
    part.mkdir()
    try:
        write_flushed(part / "state.safetensors", values)
        write_flushed(part / "state.json", json.dumps(header).encode())
        if target.exists():
            target.rename(former)
        part.rename(target)
        _flush_folder(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)
    kept = [path for path in _checkpoints(folder) if path.name <= target.name][-keep:]
    for path in _checkpoints(folder):
        if path not in kept:  # too old; or newer, and then no use, since the run would have gone on from there
            shutil.rmtree(path, ignore_errors=True)
    return target


def load_newest(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Return step and state of the newest whole checkpoint, or None if there is none."""
    for path in reversed(_checkpoints(folder)):
        try:
            return _read(path)
        except (FormatError, OSError):
            continue
    return None


def _read(path: Path) -> tuple[int, dict[str, Any]]:
    try:
        header = json.loads((path / "state.json").read_text())
        values = (path / "state.safetensors").read_bytes()
        if header["version"] > VERSION:
            raise FormatError(f"{path} was written by a newer depl0.", hint="pip install --upgrade depl0.")
        if _checksum(header, values) != header["sha256"]:
            raise FormatError(f"{path} is damaged: its checksum is wrong.")
        return int(header["step"]), _unpack(header["tree"], dict(read_safetensors(values)))
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}.") from error


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob(f"{_PREFIX}*") if p.is_dir()) if folder.is_dir() else []


def _checksum(header: dict[str, Any], values: bytes) -> str:
    """Return the SHA-256 of both files: of the header's other fields in a canonical form, and of the values."""
    fields = {key: value for key, value in header.items() if key != "sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(hashlib.sha256(canonical).digest() + hashlib.sha256(values).digest()).hexdigest()


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors by the numbers they are kept under, and dicts by lists of pairs (keys may be numbers)."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
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


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
