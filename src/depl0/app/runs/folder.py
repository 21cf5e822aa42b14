"""The folder of one run: recipe, environment, metrics, checkpoints, compact network, summary."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from depl0._util import io
from depl0._util.io import atomic_write
from depl0.app.recipes.recipe import Recipe
from depl0.app.recipes.toml import read_recipe, write_recipe
from depl0.errors import FormatError, InputError
from depl0.latency import processor_name

LOCK = ".lock"
FREE = ("run.checkpoint_minutes", "run.checkpoint_steps", "run.keep_checkpoints")
"""fields that may change when a run is resumed: they do not affect its result"""
PACKAGES = ("depl0", "torch", "accelerate", "safetensors", "numpy", "timm", "torchvision")


class Lines:
    """A file of JSON lines that grows during a run, and is restored when a run is resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: dict[str, Any]) -> None:
        """Append one line and flush it to disk, because checkpoints rely on it."""
        with self._explained():
            io.append(self.path, (json.dumps(line) + "\n").encode())

    def read(self) -> list[dict[str, Any]]:
        """Return all lines."""
        with self._explained():
            found = [json.loads(line) for line in self.text().splitlines()]
            for number, line in enumerate(found, start=1):
                if not isinstance(line, dict):
                    raise ValueError(f"line {number} is not a JSON object")
            return found

    def text(self) -> str:
        """Return the whole file, for a checkpoint; an empty string if there is no file."""
        with self._explained():
            return io.read_bounded(self.path, io.MAX_LINES).decode() if os.path.lexists(self.path) else ""

    def restore(self, text: str) -> None:
        """Restore the file to an earlier result of :meth:`text`."""
        with self._explained():
            if text:
                atomic_write(self.path, text.encode())
            else:
                self.path.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RecursionError, IsADirectoryError, io.Unreadable) as error:
            raise FormatError(
                f"{self.path} cannot be used: {getattr(error, 'strerror', None) or error}.",
                hint="move it out of the way; --resume brings it back from the last checkpoint.",
            ) from error


class RunFolder:
    """Reads and writes the files of a run. Whole files are written atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.compact = path / "compact"
        self.metrics = Lines(path / "metrics.jsonl")
        self.gates = Lines(path / "gates.jsonl")

    @property
    def has_begun(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return (self.path / "recipe.toml").exists()

    def begin(self, recipe: Recipe) -> None:
        """Create the folder with the recipe and the environment."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._write("recipe.toml", write_recipe(recipe))
        self._write("environment.json", _json(environment()))
        self._write("metrics.jsonl", "")
        self.gates.restore("")

    def restore(self, recipe: str, metrics: str, gates: str) -> None:
        """Restore files to their state at a checkpoint. Later lines belong to steps that are repeated."""
        self._write("recipe.toml", recipe)
        self._write("metrics.jsonl", metrics)
        self.gates.restore(gates)

    def keep_predictions(self, answers: dict[str, Any]) -> None:
        """Write ``answers.json``: correct predictions by class, and the number of changed predictions."""
        self._write("answers.json", _json(answers))

    def finish(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``, which marks the run as finished."""
        self._write("summary.json", _json(summary))

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run, even if its other files have been removed."""
        path = self.path / "summary.json"
        try:
            return dict(io.read_json(path))
        except (FileNotFoundError, ValueError, TypeError, RecursionError):  # truncated: it is written again
            return None
        except OSError as error:
            raise FormatError(
                f"{path} cannot be read: {error.strerror or error}.",
                hint="move it out of the way; --resume makes it again from the last checkpoint.",
            ) from error

    def _write(self, name: str, text: str) -> None:
        atomic_write(self.path / name, text.encode())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder, which is created if necessary. The system releases the lock when its process ends."""
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        hint = f"wait for it, stop it, or choose another --out. If its host is down, delete {folder / LOCK}."
        raise InputError(f"another run works in {folder}.", hint=hint) from None
    except OSError as error:
        raise InputError(
            f"the run folder {folder} cannot be written to: {error.strerror or error}.",
            hint="choose another --out, or free disk space and check the permissions of the folder.",
        ) from error
    try:
        yield
    finally:
        lock.release()


def open_run(path: Path, recipe: Recipe, resume: bool) -> tuple[RunFolder, bool]:
    """Return the folder of a new or resumed run, and whether it is resumed."""
    folder = RunFolder(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, not a folder for a run.", hint="choose another --out.")
    if not folder.has_begun:
        killed = (LOCK, ".part")  # files left by a run that was killed during its start
        if path.exists() and not all(entry.name.endswith(killed) for entry in path.iterdir()):
            raise InputError(f"{path} is not empty and holds no run.", hint="choose another --out.")
        return folder, False
    if not resume:
        raise InputError(
            f"{path} holds another run already.",
            hint="choose another --out, or continue that run with --resume.",
        )
    for name, was, now in differences(read_recipe(path / "recipe.toml"), recipe):
        if name in FREE:
            continue
        raise InputError(
            f"{path} holds a run of another recipe: {name} was {was!r} and is now {now!r}.",
            hint="resume with the settings of that run, or choose another --out.",
        )
    return folder, True


def find_compact(path: Path) -> tuple[Path, Path | None]:
    """Return the compact network's folder, and the recipe of its run if there is one."""
    for compact, recipe in ((path / "compact", path / "recipe.toml"), (path, path.parent / "recipe.toml")):
        if (compact / "compact.json").is_file():
            return compact, recipe if recipe.is_file() else None
    if (path / "recipe.toml").is_file():
        raise InputError(f"the run {path} is not finished: it has no compact network yet.", hint="resume it: --resume.")
    raise InputError(f"{path} holds neither a run nor a compact network.", hint="pass a folder that depl0 wrote.")


def default_folder(name: str, resume: bool) -> Path:
    """Return the first free folder of runs/NAME, runs/NAME-2, …; to resume, the last existing one."""
    taken, number = None, 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return taken if resume and taken is not None else path
        taken, number = path, number + 1


def fields_of(recipe: Recipe) -> dict[str, object]:
    """Return the values of all fields of a recipe by name: ``section.field``."""
    return {
        f"{section}.{field}" if field else section: value
        for section, fields in recipe.model_dump().items()
        for field, value in (fields.items() if isinstance(fields, dict) else [("", fields)])
    }


def differences(left: Recipe, right: Recipe) -> Iterator[tuple[str, object, object]]:
    """Yield the fields in which two recipes differ, and their two values."""
    others = fields_of(right)
    yield from ((name, value, others[name]) for name, value in fields_of(left).items() if value != others[name])


def environment() -> dict[str, Any]:
    """Return versions, commit and machine, so that the run can be reproduced."""
    versions = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "python": platform.python_version(),
        "packages": versions,
        "commit": _commit(),
        "machine": {
            "system": platform.platform(),
            "processor": processor_name(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


def _commit() -> str | None:
    """Return the commit of depl0's own source tree, if it runs from one.

    An environment may be inside another repository.
    """
    package = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(
            ["git", "-C", str(package), "rev-parse", "HEAD", "--show-toplevel"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    commit, _, top = done.stdout.strip().partition("\n")
    return commit if package == Path(top) / "src" / "depl0" else None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
