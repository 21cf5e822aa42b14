"""Every reader of a file that may come from a stranger, under the name of the file that it reads.

A reader either takes a file or refuses it with an error of depl0; anything else is a fault. The stranger knows how to
make a checksum, so that files are read beyond it. ``tests/faults/test_attacks.py`` uses them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save as write_safetensors

import depl0
from depl0._util.io import checksum
from depl0.app.models.weights import load_weights
from depl0.app.recipes.toml import parse_recipe, read_recipe, write_recipe
from depl0.app.reports import tables
from depl0.app.reports.run import read_run
from depl0.app.runs.checkpoint import load_newest, save_checkpoint, wrap_content_errors
from depl0.app.runs.folder import Lines
from depl0.app.studies.study import _read as read_study
from tests.networks.golden import TinyDigits
from tests.networks.tiny import TinyNet, tiny_recipe
from tests.support.runs import write_run

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "blocks"
Reader = Callable[[Path], None]
"""is given the path of the file; what must lie beside it lies there"""
READERS: dict[str, Reader] = {}


def reads(*names: str) -> Callable[[Reader], Reader]:
    def note(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys(names, reader))
        return reader

    return note


def prepared(name: str, folder: Path) -> Path:
    """Put a good file of this name into a new folder, with what belongs to it; return its path."""
    folder.mkdir(parents=True)
    path = folder / name
    if name.startswith("compact."):
        for file in ("compact.json", "compact.safetensors"):
            shutil.copy(GOLDEN / file, folder)
    elif name == "checkpoint.safetensors":
        save_checkpoint(folder, 3, {"phase": "search", "w": torch.ones(2), "list": [1, (2.5, None)]}, 1).rename(path)
    elif name == "weights.safetensors":
        path.write_bytes(write_safetensors(TinyNet().state_dict()))
    elif name == "weights.pt":
        torch.save(TinyNet().state_dict(), path)  # noqa: TID251 - what others write
    elif name == "study.json":
        recipe = write_recipe(tiny_recipe())
        members = [{"name": "a", "recipe": recipe}]
        path.write_text(json.dumps({"members": members}))
    else:
        shutil.rmtree(folder)
        write_run(folder, layers=2, gates=3, epochs=2)
        if name == "recipe.toml":
            path.write_text(write_recipe(tiny_recipe()))
    return path


@reads("compact.json", "compact.safetensors")
def read_compact(path: Path) -> None:
    header, values = path.parent / "compact.json", path.parent / "compact.safetensors"
    sign(header, values)
    depl0.load(path.parent, TinyDigits)


@reads("checkpoint.safetensors")
def read_checkpoint(path: Path) -> None:
    content = path.read_bytes() if path.is_file() and path.stat().st_size < 1e9 else b""
    named = path.with_name(f"step-000000003-{hashlib.sha256(content).hexdigest()[:16]}.safetensors")
    path.rename(named)
    try:
        load_newest(path.parent)
    finally:
        named.rename(path)


def sign(header: Path, values: Path) -> None:
    """Give two files the checksum that they should have."""
    if not all(file.is_file() and file.stat().st_size < 1e9 for file in (header, values)):
        return
    try:
        tree = json.loads(header.read_bytes())
        tree["sha256"] = checksum(tree, values.read_bytes())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return
    header.write_text(json.dumps(tree))


@reads("weights.safetensors", "weights.pt")
def read_weights(path: Path) -> None:
    load_weights(TinyNet(), path)


@reads("recipe.toml")
def read_toml(path: Path) -> None:
    found = read_recipe(path)
    assert parse_recipe(write_recipe(found)) == found


@reads("metrics.jsonl", "gates.jsonl", "summary.json", "environment.json")
def read_report(path: Path) -> None:
    if path.suffix == ".jsonl":
        Lines(path).read()
    run = read_run(path.parent)
    with wrap_content_errors("a file of this run"):
        for make in (tables.stages, tables.dense_to_compact, tables.layers, tables.unprunable, tables.provenance):
            make(run).shown()


@reads("study.json")
def read_members(path: Path) -> None:
    read_study(path)
