"""Initialise a network from weights on disk: safetensors, or a PyTorch state dict.

A ``.pt`` file is a pickle, which can hold code. It is read by PyTorch's restricted unpickler, which allows only tensors
and plain containers.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251 - only the class of an error; nothing is unpickled with it
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from depl0.errors import InputError

_PYTORCH_ENDINGS = (".pt", ".pth", ".pth.tar", ".ckpt", ".bin")
_NESTED_UNDER = ("state_dict", "model")
_PARALLEL_PREFIX = "module."
_SHOWN = 3


@final
@dataclass(frozen=True)
class NewHead:
    """The final layers of a network that the weights do not fit, because they have other classes."""

    layers: tuple[str, ...]
    before: int | None
    """number of classes in the weights; None if the weights do not contain these layers"""
    now: int


def load_weights(model: nn.Module, path: str | os.PathLike[str], *, strict: bool = True) -> NewHead | None:
    """Copy the weights of a file into a network. On an error, nothing is copied.

    Checkpoints that keep the state dict under ``"state_dict"`` or ``"model"`` are understood, and so are the keys of
    networks saved inside ``DataParallel``. Two kinds of entries may be missing: the counters of batch norms, which old
    files lack, and all but one of the names of a shared tensor.

    With ``strict=False``, weights for another number of classes are also accepted. The classifier layers keep their
    initial values and are returned.
    """
    path = Path(path)
    _check_size(path, model)
    return fill(model, _read(path), f"weights file {path}", strict=strict)


def _check_size(path: Path, model: nn.Module) -> None:
    """Raise an error for a file that is far larger than a checkpoint of the network with all its optimizer's state."""
    limit = 64 * sum(v.numel() for v in model.state_dict().values() if isinstance(v, Tensor)) + (1 << 28)
    if path.is_file() and path.stat().st_size > limit:
        raise InputError(
            f"weights file {path} has {path.stat().st_size:,} bytes, more than the {limit:,} that are read for this "
            "network.",
            hint="save the state dict alone where the file comes from, with safetensors.torch.save_file.",
        )


def fill(model: nn.Module, found: dict[str, Tensor], source: str, *, strict: bool = True) -> NewHead | None:
    """Apply :func:`load_weights` to the tensors of a state dict; ``source`` is their name in error messages."""
    wanted = {key: value for key, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    if any(target.is_meta for target in wanted.values()):
        raise InputError(
            "weights cannot be loaded into a network on the meta device.",
            hint="call model.to_empty(device='cpu') first.",
        )
    found = _without_parallel_prefix(found, wanted)
    head = None if strict else find_new_head(model, found, wanted)
    if head is not None:
        found = {key: value for key, value in found.items() if key in wanted and _layer(key) not in head.layers}
        wanted = {key: value for key, value in wanted.items() if _layer(key) not in head.layers}
    _check_fit(source, found, wanted)

    # Everything that can fail happens before the first weight is changed.
    ready = {key: torch.empty_like(wanted[key]).copy_(value) for key, value in found.items()}
    with torch.no_grad():
        for key, value in ready.items():
            wanted[key].copy_(value)
    return head


def find_new_head(model: nn.Module, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> NewHead | None:
    """Return the classifier layers if only they do not match; None if everything matches or other layers do not.

    These are the layers whose weight and bias differ in the number of outputs, all by the same change. If the weights
    lack such layers (a backbone) or name them differently, it is the network's last layer.
    """
    unlike = {key for key in found if key in wanted and found[key].shape != wanted[key].shape}
    counts = {(found[key].shape[:1], wanted[key].shape[:1]) for key in unlike}
    same_inputs = all(found[key].shape[1:] == wanted[key].shape[1:] for key in unlike)
    *_, (last_name, last_weight) = [("", torch.empty(0)), *model.named_parameters()]
    last = _layer(last_name)
    missing = {_layer(key) for key in wanted if key not in found and not _is_counter(key)}
    extra = {_layer(key) for key in found if key not in wanted}
    whole = unlike == {key for key in wanted if _layer(key) in {_layer(other) for other in unlike}}
    if not missing and not extra and len(counts) == 1 and same_inputs and whole:
        (before,), (now,) = counts.pop()
        return NewHead(tuple(dict.fromkeys(_layer(key) for key in wanted if key in unlike)), before, now)
    if not unlike and missing == {last} and len(extra) <= 1 and found.keys() & wanted.keys():
        return NewHead((last,), None, len(last_weight))
    return None


def _layer(key: str) -> str:
    return key.rpartition(".")[0]


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise InputError(f"weights file {path} does not exist.")
    if not path.is_file():
        raise InputError(f"weights file {path} is not a file; expected a .safetensors, .pt or .pth file.")
    name = path.name.lower()
    if name.endswith(".safetensors"):
        return _read_safetensors(path)
    if name.endswith(_PYTORCH_ENDINGS):
        return _state_dict_of(path, _read_pytorch(path))
    raise InputError(
        f"weights file {path} must end in .safetensors, .pt or .pth.",
        hint="save a state dict with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors').",
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"weights file {path} is damaged or no safetensors file: {error}.", hint="copy or download it again."
        ) from error
    except OSError as error:
        raise InputError(f"weights file {path} cannot be read: {error}.") from error


def _read_pytorch(path: Path) -> object:
    _check_members(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below is more specific than this warning
            # The restricted unpickler allows tensors and plain containers, and calls nothing.
            return torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - weights_only
    except UnpicklingError as error:
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        if foreign is None:
            raise _damaged(path, "it is not a PyTorch file") from error
        raise InputError(
            f"weights file {path} is refused: it holds {foreign[1]}, which would run code when it is read. "
            "Only tensors are read.",
            hint="save the state dict alone where the file comes from, with safetensors.torch.save_file.",
        ) from error
    except Exception as error:  # exceptions for damaged files are undocumented: RuntimeError, EOFError, …
        reason = str(error).partition(". ")[0].partition("\n")[0] or "it ends too early"
        raise _damaged(path, f"{type(error).__name__}: {reason}") from error


def _check_members(path: Path) -> None:
    """Raise if an archive has members larger than itself.

    torch.save does not compress, so such a file is not its output.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (
        OSError,
        ValueError,
        NotImplementedError,
        zipfile.BadZipFile,
    ):  # an older format, or damaged
        return
    if size > path.stat().st_size:
        raise _damaged(path, f"its members would have {size:,} bytes, more than the file itself")


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(
        f"weights file {path} is damaged or holds no state dict ({reason}).", hint="copy or download it again."
    )


def _state_dict_of(path: Path, content: object) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        for key in _NESTED_UNDER:
            if isinstance(content.get(key), Mapping):
                return _state_dict_of(path, content[key])
    if not isinstance(content, Mapping) or not content:
        found = "nothing" if isinstance(content, Mapping) else f"a {type(content).__name__}"
        raise InputError(f"weights file {path} must hold a state dict, found {found} instead.")
    odd = [key for key, value in content.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if odd:
        raise InputError(
            f"weights file {path} must hold a state dict of tensors, but {_some(map(repr, odd))} "
            f"{'is' if len(odd) == 1 else 'are'} none.",
            hint="a checkpoint's state dict is looked for under 'state_dict' and 'model'.",
        )
    return dict(content)


def _without_parallel_prefix(found: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    wrapped = all(key.startswith(_PARALLEL_PREFIX) for key in found)
    if not wrapped or any(key.startswith(_PARALLEL_PREFIX) for key in wanted):
        return found
    return {key.removeprefix(_PARALLEL_PREFIX): value for key, value in found.items()}


def _check_fit(source: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    given = {id(wanted[key]) for key in found if key in wanted}
    missing = [key for key in wanted if key not in found and id(wanted[key]) not in given and not _is_counter(key)]
    extra = [key for key in found if key not in wanted]
    unlike = [key for key in found if key in wanted and not _fits(key, found[key], wanted[key])]
    if not (missing or extra or unlike):
        return
    shapes = [f"{key}: {_shape(found[key])} in the file, {_shape(wanted[key])} in the network" for key in unlike]
    problems = (("missing", missing, ", "), ("extra", extra, ", "), ("misshapen", shapes, "; "))
    parts = [f"{len(keys)} {kind} ({_some(keys, separator)})" for kind, keys, separator in problems if keys]
    raise InputError(
        f"{source} does not fit the network: {', '.join(parts)}.",
        hint="pass the network that was trained, with the same number of classes. Nothing was loaded.",
    )


def _fits(key: str, found: Tensor, wanted: Tensor) -> bool:
    """Return True if a weight can be copied, from any type of float or, for a counter, from any type."""
    same_kind = found.is_floating_point() == wanted.is_floating_point() or _is_counter(key)
    return found.shape == wanted.shape and same_kind and not found.is_complex()


def _is_counter(key: str) -> bool:
    return key.rpartition(".")[2] == "num_batches_tracked"


def _shape(tensor: Tensor) -> str:
    """Format a tensor's shape, and its type unless it is a float."""
    shape = "×".join(map(str, tensor.shape)) or "a single number"
    return shape if tensor.is_floating_point() else f"{shape} of {str(tensor.dtype).removeprefix('torch.')}"


def _some(names: Iterable[str], separator: str = ", ") -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return separator.join(listed[:_SHOWN]) + more
