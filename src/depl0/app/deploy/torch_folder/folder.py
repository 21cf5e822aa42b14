"""Writes the folder that needs no depl0: weights, sizes, code and card, checked by another process first."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from safetensors.torch import save

from depl0._util.io import flush_folder, name_aside, write_flushed
from depl0._util.user_code import shown_spec
from depl0.app.deploy.source import Source
from depl0.app.deploy.torch_folder.card import model_card
from depl0.app.deploy.torch_folder.code import model_code
from depl0.app.deploy.torch_folder.structure import FORMAT, VERSION, structure_of
from depl0.errors import InputError
from depl0.export.checked import check_outputs, explained, read_by_another_process
from depl0.export.targets import CALL_TORCH, Request, Target, reader_program
from depl0.export.torch_files import state_of

FILES = ("model.safetensors", "config.json", "model.py", "README.md")
"""what every folder has; the user's own files that build the network may be there too"""


@dataclass(frozen=True)
class ExportedFolder:
    """A folder that was written, loaded by another process, and found equal."""

    path: Path
    size: int
    max_error: float
    seconds: tuple[float, ...] = ()


@final
class _Folder(Target):
    """Reads a folder as its users do; the file that it is given is ``model.py``."""

    name: ClassVar[str] = "torch"
    suffix: ClassVar[str] = ".py"
    reader: ClassVar[str] = reader_program(
        "import os\nsys.path.insert(0, os.path.dirname(file))\nfrom model import load\nmodule = load()\n" + CALL_TORCH
    )

    def encode(self, request: Request) -> bytes:
        """Files of a folder are written one by one."""
        raise NotImplementedError


def export_folder(source: Source, path: Path, name: str | None = None, rounds: int = 0) -> ExportedFolder:
    """Write a compact network as a folder that plain PyTorch loads; whatever goes wrong, nothing is left.

    The folder must not exist yet, or be empty. A new process that cannot import depl0 builds the network from it, and
    its outputs must be those of ``source.module``.
    """
    _check_place(path)
    request = Request(source.module, source.example)
    given, wanted = _Folder().expected(request)
    files = _files(source, name or path.resolve().name)
    size = sum(map(len, files.values()))
    aside = Path()
    try:
        with explained(path, size):
            aside = name_aside(path)
            aside.mkdir()
            for file, data in files.items():
                (aside / file).parent.mkdir(parents=True, exist_ok=True)
                write_flushed(aside / file, data)
        found = read_by_another_process(_Folder(), aside / "model.py", given, rounds)
        seconds = tuple(found.pop("seconds").tolist())
        error = check_outputs(wanted, found, _Folder.tolerance)
        for compiled in list(aside.rglob("__pycache__")):
            shutil.rmtree(compiled, ignore_errors=True)
        with explained(path, size):
            aside.replace(path)  # an empty folder is replaced
            flush_folder(path.parent)
    finally:
        if aside != Path():
            shutil.rmtree(aside, ignore_errors=True)
    return ExportedFolder(path, size, error, seconds)


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; --to torch writes a folder.", hint="choose another folder.")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; --to torch writes a new folder.", hint="choose another, or empty it.")
    if not path.resolve().parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist.", hint=f"mkdir -p {path.parent}")


def _files(source: Source, name: str) -> dict[str, bytes]:
    """Return the contents of all files."""
    structure = structure_of(source.module, source.make())
    network = type(source.module).__name__
    known = {key.removeprefix("depl0."): _value(value) for key, value in source.metadata.items()}
    config = {"format": FORMAT, "format_version": VERSION, **known, **structure.to_dict()}
    left = config["macs"] / max(config["dense_macs"], 1)
    title = f"A compact {_plain(shown_spec(source.spec))} with {left:.1%} of the MACs of the dense network."
    texts = {
        "config.json": _readable(config),
        **model_code(source.spec, source.sizes, structure, title),
        "README.md": model_card(name, network, config, {**source.summary, "model": shown_spec(source.spec)}),
    }
    weights: bytes = save(state_of(source.module), metadata={"format": "pt"})
    return {"model.safetensors": weights, **{file: text.encode() for file, text in texts.items()}}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _readable(config: dict[str, object]) -> str:
    """Return JSON with one short list a line."""
    text = json.dumps(config, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "]", text) + "\n"


def _plain(text: str) -> str:
    """Keep what ends a docstring out of one."""
    return text.replace("\\", "/").replace('"', "'")
