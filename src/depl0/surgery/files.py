"""Pruned models on disk: ``compact.json`` describes the cut of the original model, ``compact.safetensors`` has values.

No pickle is written or read. Loading needs the folder and the user's function that builds the original model.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from safetensors.torch import load_file
from safetensors.torch import save as write_safetensors
from torch import Tensor, nn

from depl0._util import io
from depl0._util.io import atomic_write, checksum, flush_folder
from depl0.costs.count import Cost
from depl0.equivalence.comparison import PROBES
from depl0.equivalence.probe import check_description, outputs_on, probe_error
from depl0.errors import Depl0Error, FormatError, InputError
from depl0.host.network import canonical_names, first_line
from depl0.replacements.base import Replacement, replacement_from
from depl0.surgery.hub import local_folder
from depl0.surgery.record import CompactRecord, info, remember, state_shapes
from depl0.surgery.slicing import cut_to

FORMAT = "depl0-compact"
VERSION = 1
_WIDEST = 16
"""bytes of a number (complex128)"""
_MEASURED = ("certificate", "agreement", "recovery")
"""fields of a record that are dataclasses"""
_FACTORY = "pass the function that builds the network which was pruned, with the same arguments."


def save(compact: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write a pruned model to a folder as ``compact.json`` and ``compact.safetensors``.

    Args:
        compact: the pruned model from ``extract`` or a search, before or after fine-tuning.
        folder: the target folder; created if it does not exist. Existing files are replaced.

    Returns:
        The folder.

    Raises:
        InputError: if ``compact`` is not a pruned model, or ``folder`` is a file.

    Example:
        >>> import tempfile, depl0
        >>> make = lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> compact = depl0.attach(make(), torch.zeros(1, 3)).extract()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loaded = load(save(compact, folder), make)
        >>> loaded[0]
        Linear(in_features=3, out_features=8, bias=True)
    """
    record = info(compact)
    values = _serialised(compact)
    header = {"format": FORMAT, "version": VERSION, **record_to_json(record)}
    if record.probe is not None:
        with suppress(Exception):  # inputs with a meaning, for example an index, cannot be verified
            header["proof"]["outputs"] = outputs_on(compact, record.probe)
    header["sha256"] = checksum(header, values)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{target} is a file, not a folder for a compact network.", hint="move it away.") from error
    text = json.dumps(header).encode()
    if len(text) > io.MAX_JSON:
        raise InputError(
            f"the lists of the network's kept channels have {len(text):,} bytes, and at most {io.MAX_JSON:,} are read.",
            hint="save its state dict with safetensors.torch.save_file.",
        )
    _replace_files(target, header["sha256"], text, values)
    return target


def _replace_files(folder: Path, sha256: str, header: bytes, values: bytes) -> None:
    """Write both files so that a killed process leaves either the former network or the new one.

    The values first get a name with the checksum, under which only the new header finds them. Replacing the header
    switches to the new network, and then the values get their final name.
    """
    final, pending = folder / "compact.safetensors", folder / _pending_name(sha256)
    atomic_write(pending, values)
    try:
        atomic_write(folder / "compact.json", header)
    except Exception:  # not KeyboardInterrupt, which may come when the header is already the new one
        pending.unlink(missing_ok=True)
        raise
    pending.replace(final)
    flush_folder(folder)
    for former in folder.glob(_pending_name("*")):  # left by a killed save
        former.unlink(missing_ok=True)


def _pending_name(sha256: str) -> str:
    return f"compact-{sha256}.safetensors"


def file_size(model: nn.Module) -> int:
    """Return the bytes of a network's values, original or pruned, as a safetensors file."""
    return len(_serialised(model))


def load(folder: str | os.PathLike[str], factory: Callable[[], nn.Module]) -> nn.Module:
    """Rebuild a pruned model, in evaluation mode, from a folder written by :func:`save`.

    Args:
        folder: the folder that ``save`` returned, or ``hf://OWNER/NAME`` (``@REVISION``) on the Hugging Face Hub.
        factory: builds the original model; it is cut, filled with the saved values and verified.

    Raises:
        FormatError: if the folder is damaged, was written by a newer version, or belongs to another network than
            ``factory`` builds, or if the loaded network computes other outputs than the saved one.
        InputError: if ``factory`` does not return a network.
        DownloadError: if the folder cannot be downloaded.

    Example:
        >>> import tempfile, depl0
        >>> make = lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = save(depl0.attach(make(), torch.zeros(1, 3)).extract(), folder)
        ...     load(saved, make).training
        False
    """
    if not callable(factory) or isinstance(factory, nn.Module):
        raise InputError(f"factory must be a function that builds the original model, got {type(factory).__name__}.")
    source = local_folder(folder)
    header = _read_header(source / "compact.json")
    record = record_from_json(header, source / "compact.json")
    model = factory()
    if not isinstance(model, nn.Module):
        raise InputError(f"factory must return a torch.nn.Module, got {type(model).__name__} instead.")
    numbers = sum(math.prod(shape) for shape in state_shapes(model).values())
    values = _checked_values(source, header, _WIDEST * numbers + io.MAX_JSON)  # bounded by the user's network
    dense, built = (
        {name: f"of shape {shape}" for name, shape in shapes.items()}
        for shapes in (record.dense_shapes, state_shapes(model))
    )
    _check_equal(dense, built, source)
    with _damage(source / "compact.json", "describes cuts that the network does not allow"):
        cut_to(model, record.positions, record.replacements)
    with _damage(values, "cannot be read"):
        tensors = load_file(values)  # mapped into memory
    _fill(model, tensors, source)
    _verify(model, record, header.get("proof"), source)
    remember(model, record)
    return model.eval()


def _verify(model: nn.Module, record: CompactRecord, proof: Any, source: Path) -> None:
    """Verify that the outputs match those of the saved network, whose state may not all be in its state dict."""
    if proof is None or proof["outputs"] is None:
        return
    try:
        found = outputs_on(model, record.probe)
        error = probe_error(proof["outputs"], found)
    except Exception as error_raised:
        raise FormatError(
            f"the network that was loaded from {source} does not run on the input that it was saved with: "
            f"{type(error_raised).__name__} {first_line(error_raised)}",
            hint=_FACTORY,
        ) from error_raised
    if not error <= PROBES:
        raise FormatError(
            f"the network that was loaded from {source} gives other outputs than the one that was saved "
            f"({error:.0%} off on a fixed input): part of it is not in its parameters and buffers.",
            hint="modules belong in an nn.ModuleList, not in a plain list, and tensors that matter in persistent "
            "buffers; or the function that builds the network does not build the same one.",
        )


def read_record(folder: str | os.PathLike[str]) -> CompactRecord:
    """Return the record of a saved pruned model, without building it."""
    path = Path(folder) / "compact.json"
    return record_from_json(_read_header(path), path)


def _checked_values(source: Path, header: dict[str, Any], limit: int) -> Path:
    """Return the path of a folder's values, which have at most this size and the checksum in the header."""
    pending = source / _pending_name(header["sha256"])  # exists if the last save was killed
    path = pending if pending.is_file() else source / "compact.safetensors"
    with _explained(path):
        io.check_values(path, limit)
        found = checksum(header, path)
    if found != header["sha256"]:
        raise FormatError(
            f"{source} is damaged or was changed: compact.safetensors and compact.json do not have the checksum that "
            "was written with them.",
            hint="copy both files again from their source.",
        )
    return path


# -- values --------------------------------------------------------------------------------------------------------


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict, with each tied tensor once."""
    names = canonical_names(model)
    state = model.state_dict()
    odd = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        raise InputError(f"the network's state holds something other than a tensor: {odd[0]}.")
    return {name: tensor for name, tensor in state.items() if names.get(name, name) == name}


def _serialised(model: nn.Module) -> bytes:
    return write_safetensors({name: t.detach().cpu().contiguous() for name, t in _own_tensors(model).items()})


def _fill(model: nn.Module, values: dict[str, Tensor], source: Path) -> None:
    expected = _own_tensors(model)
    _check_equal(
        {name: _form(t) for name, t in values.items()}, {name: _form(t) for name, t in expected.items()}, source
    )
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name in values:
                tensor.data = values[name].to(tensor.device, copy=True)  # the file may be overwritten in place


def _form(tensor: Tensor) -> str:
    kind = "complex" if tensor.is_complex() else "floating-point" if tensor.is_floating_point() else "integer"
    return f"{kind} of shape {tuple(tensor.shape)}"


def _check_equal(saved: Mapping[str, str], found: Mapping[str, str], source: Path) -> None:
    """Raise an error unless the tensors of a folder and of a network have the same names and forms."""
    for name in [*saved, *found]:
        had, has = (forms.get(name, "missing") for forms in (saved, found))
        if had != has:
            raise FormatError(
                f"the folder {source} is of another network: {name} was {had} there and is {has} in what factory() "
                "built.",
                hint=_FACTORY,
            )


# -- header --------------------------------------------------------------------------------------------------------


def record_to_json(record: CompactRecord) -> dict[str, Any]:
    """Return a record as plain lists and dicts."""
    keep: dict[str, dict[str, list[int]]] = {}
    numbers: dict[str, dict[str, int]] = {}
    known = _axis_sizes(record.dense_shapes, record.replacements)
    for (name, dim), positions in record.positions.items():
        if (name, dim) in known:
            keep.setdefault(name, {})[str(dim)] = positions.tolist()
        else:
            numbers.setdefault(name, {})[str(dim)] = len(positions)
    return {
        "network": record.network,
        "cost": {
            name: {"params": cost.params, "macs": cost.macs}
            for name, cost in (("dense", record.dense), ("compact", record.compact))
        },
        "inputs": [list(shape) for shape in record.inputs],
        "dense_shapes": {name: list(shape) for name, shape in record.dense_shapes.items()},
        "keep": {name: dict(sorted(keep[name].items())) for name in sorted(keep)},  # whatever the order of cuts
        "numbers": {name: dict(sorted(numbers[name].items())) for name in sorted(numbers)},
        "replaced": {path: replacement.to_dict() for path, replacement in sorted(record.replacements.items())},
        **{name: asdict(value) for name in _MEASURED if (value := getattr(record, name)) is not None},
        **({} if record.probe is None else {"proof": {"inputs": record.probe, "outputs": None}}),
    }


def record_from_json(header: dict[str, Any], path: Path) -> CompactRecord:
    """Read a record from its JSON form; ``path`` is the file to name in an error."""
    with _damage(path, "is damaged"):
        shapes = {str(name): _shape(sizes) for name, sizes in header["dense_shapes"].items()}
        replacements = {str(path): replacement_from(entry) for path, entry in header["replaced"].items()}
        sizes = _axis_sizes(shapes, replacements)
        positions = {
            (str(name), int(dim)): _positions(keep, sizes[str(name), int(dim)])
            for name, dims in header["keep"].items()
            for dim, keep in dims.items()
        }
        for name, places in header["numbers"].items():
            for place, count in places.items():
                positions[str(name), int(place)] = torch.arange(_count(count))
        types = get_type_hints(CompactRecord)
        return CompactRecord(
            network=str(header["network"]),
            dense_shapes=shapes,
            positions=positions,
            replacements=replacements,
            dense=_typed(Cost, header["cost"]["dense"]),
            compact=_typed(Cost, header["cost"]["compact"]),
            inputs=tuple(map(_shape, header["inputs"])),
            probe=_probe(header.get("proof")),
            **{name: _typed(types[name], header.get(name)) for name in _MEASURED},
        )


def _typed(kind: Any, value: Any) -> Any:
    """Return plain data as a value of this type, which may be a dataclass; raise an error if they have another one."""
    parts = get_args(kind)
    if is_dataclass(kind):
        fields = {name: each for name, each in get_type_hints(kind).items() if name in value}
        return kind(**{name: _typed(each, value[name]) for name, each in fields.items()})  # type: ignore[operator]
    if NoneType in parts:
        return None if value is None else _typed(parts[0], value)
    if get_origin(kind) is tuple:
        return tuple(_typed(parts[0], each) for each in value)
    if get_origin(kind) is Mapping:
        return {str(name): _typed(parts[1], each) for name, each in value.items()}
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{str(value)[:50]!r} is not of the type {kind.__name__}")
    return kind(value)


@contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """Turn errors that a damaged or edited file causes into one that names the file."""
    try:
        yield
    except (Depl0Error, MemoryError):
        raise
    except Exception as error:
        raise FormatError(
            f"{path} {what}: {type(error).__name__} {str(error)[:200]}.", hint="copy the folder again from its source."
        ) from error


def _probe(proof: Any) -> Any:
    if proof is None:
        return None
    if not isinstance(proof, dict) or not isinstance(proof["outputs"], (list, type(None))):
        raise ValueError("the outputs to compare with are not a list")
    return check_description(proof["inputs"])


def _axis_sizes(
    shapes: Mapping[str, tuple[int, ...]], replacements: Mapping[str, Replacement]
) -> dict[tuple[str, int], int]:
    """Return the dense sizes of all axes: those of tensors, and the channels that replacement modules read."""
    sizes = {(name, dim): size for name, shape in shapes.items() for dim, size in enumerate(shape)}
    for path, replacement in replacements.items():
        sizes.update(replacement.channel_axes(path))
    return sizes


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:50]!r} is not a valid non-negative integer")
    return value


def _shape(sizes: Any) -> tuple[int, ...]:
    if len(sizes) > 64:
        raise ValueError(f"a tensor has {len(sizes):,} dimensions")
    return tuple(map(_whole, sizes))


def _count(value: Any) -> int:
    if not 0 < _whole(value) < 2**20:
        raise ValueError(f"{value} is not a number of channels")
    return int(value)


def _positions(keep: Any, size: int) -> Tensor:
    numbers = [_whole(position) for position in keep]
    if not numbers or any(b <= a for a, b in pairwise(numbers)) or numbers[-1] >= size:
        raise ValueError(f"kept positions must rise within 0..{size - 1}")
    return torch.tensor(numbers, dtype=torch.long)


def _read_header(path: Path) -> dict[str, Any]:
    try:
        with _explained(path):
            text = io.read_bounded(path, io.MAX_JSON)
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:  # not text, not JSON, too many digits, or nested too deeply
        raise FormatError(f"{path} is not a JSON file: {error}.") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FormatError(f"{path} does not describe a compact network.", hint="pass a folder that depl0.save wrote.")
    with _damage(path, "has no valid format version"):
        version = _whole(header.get("version"))
    if version > VERSION:
        raise FormatError(
            f"{path} has format version {version}, but this depl0 reads versions up to {VERSION}.",
            hint="install a newer depl0.",
        )
    if not re.fullmatch("[0-9a-f]{64}", str(header.get("sha256"))):
        raise FormatError(f"{path} is damaged: it has no checksum.", hint="copy the folder again from its source.")
    return header


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of the file system into errors that name the file and the next step."""
    try:
        yield
    except io.Unreadable as error:
        raise FormatError(f"{path} is not read: {error}.", hint="pass a folder that depl0.save wrote.") from error
    except FileNotFoundError:
        raise FormatError(f"{path} does not exist.", hint="pass a folder that depl0.save wrote.") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}.") from error
