"""Write files and keep them only if a process without depl0 reproduces the network's outputs from them."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from depl0._util.io import temp_path, write_flushed
from depl0._util.optional import check_installed
from depl0._util.progress import check_stop
from depl0.equivalence.comparison import relative_error
from depl0.errors import ExportError, InputError
from depl0.export.targets import Request, Target

READER_SECONDS = 600.0


@dataclass(frozen=True)
class Exported:
    """A file that was written, and verified in a separate process."""

    path: Path
    size: int
    """bytes, summed if there are several files"""
    max_error: float


def write_checked(target: Target, request: Request, path: Path) -> Exported:
    """Write a file, have it read and run by another process, and keep it only if the outputs agree.

    The file is renamed only after that. On failure, an existing file is unchanged and no new file appears.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file.", hint=f"write to {path / ('model' + target.suffix)}")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist.", hint=f"mkdir -p {path.parent}")
    check_installed(*target.packages, purpose=f"for {target.name} files", extra=target.extra)
    given, wanted = target.expected(request)
    data = target.encode(request)
    files = {target.suffix: data} if isinstance(data, bytes) else dict(data)
    if len(files) > 1 and not path.name.endswith(target.suffix):
        raise InputError(
            f"{path} must end in {target.suffix}: {target.name} writes {' and '.join(files)} files.",
            hint=f"write to {path}{target.suffix}",
        )
    size = sum(map(len, files.values()))
    aside = str(temp_path(path))
    parts = {suffix: Path(aside + suffix) for suffix in files}  # torch.export.load requires this suffix
    stem = path.name.removesuffix(target.suffix)
    try:
        for suffix, content in files.items():
            with explained(path, size):
                write_flushed(parts[suffix], content)
        found = read_by_another_process(target, parts[target.suffix], given)
        error = check_outputs(wanted, found, target.tolerance)
        check_stop()
        for suffix, part in parts.items():
            with explained(path, size):
                part.replace(path if suffix == target.suffix else path.with_name(stem + suffix))
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return Exported(path, size, error)


def read_by_another_process(target: Target, file: Path, given: dict[str, Tensor]) -> dict[str, numpy.ndarray]:
    """Run a file in a new process. It is isolated (-I), so that neither this folder nor PYTHONPATH is searched."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, answers = Path(folder) / "inputs.npz", Path(folder) / "answers.npz"
        numpy.savez(inputs, **{name: tensor.cpu().numpy() for name, tensor in given.items()})  # type: ignore[arg-type]
        command = [sys.executable, "-I", "-W", "ignore", "-c", target.reader]
        try:
            done = subprocess.run(
                [*command, str(file.resolve()), str(inputs), str(answers), str(torch.get_num_threads())],
                capture_output=True,
                text=True,
                timeout=READER_SECONDS,
                cwd=folder,
            )
        except subprocess.TimeoutExpired as error:
            raise ExportError(
                f"the {target.name} file was not run within {READER_SECONDS:g} seconds and is removed."
            ) from error
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ExportError(
                f"the {target.name} file cannot be used by a process without depl0, and is removed: {said[-1]}",
                hint="another opset may work." if target.name == "onnx" else None,
            )
        with numpy.load(answers, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}


def check_outputs(wanted: dict[str, Tensor], found: dict[str, numpy.ndarray], tolerance: float) -> float:
    """Return the largest relative error of all outputs; raise if it is too large."""
    if wanted.keys() != found.keys():
        raise ExportError(f"the file gives {len(found)} outputs, the network {len(wanted)}. The file is removed.")
    for name, tensor in wanted.items():
        if tuple(tensor.shape) != found[name].shape:
            raise ExportError(
                f"output {name} has shape {found[name].shape} in the file and {tuple(tensor.shape)} in the network. "
                "The file is removed."
            )
    errors = {name: relative_error(tensor.cpu(), torch.from_numpy(found[name])) for name, tensor in wanted.items()}
    worst, error = max(errors.items(), key=lambda item: item[1], default=("", 0.0))
    if not error <= tolerance:
        raise ExportError(
            f"verification failed: output {worst} differs by {error:.2g} (allowed {tolerance:g}). The file is removed.",
            hint="please report the network; another format may work.",
        )
    return error


@contextmanager
def explained(path: Path, size: int) -> Iterator[None]:
    """Convert errors while writing to errors with an explanation."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ExportError(
                f"the disk of {path.parent.resolve()} is full: {path.name} needs {size:,} bytes. Nothing is left.",
                hint="free some space, or write to another disk.",
            ) from problem
        raise ExportError(
            f"{path} cannot be written: {problem.strerror or problem}.", hint="write to another folder."
        ) from problem
