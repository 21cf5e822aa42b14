"""Trained weights for a network: from a file (safetensors, or a PyTorch state dict), or published by a library.

A ``.pt`` file is a pickle, which can hold code. It is read by PyTorch's restricted unpickler, which allows only tensors
and plain containers.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251 - only the class of an error; nothing is unpickled with it
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from depl0._util.user_code import wrap_user_errors
from depl0.app.models.spec import LIBRARIES, check_known, import_library
from depl0.errors import Depl0Error, InputError

_PYTORCH_ENDINGS = (".pt", ".pth", ".pth.tar", ".ckpt", ".bin")
_NESTED_UNDER = ("state_dict", "model")
_PARALLEL_PREFIX = "module."
_SHOWN = 3


@final
@dataclass(frozen=True)
class NewHead:
    """The final layers of a network that the weights do not fit, because they have other classes."""

    layers: tuple[str, ...]
    before: int
    """number of classes in the weights"""
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
    if not found.keys() & wanted.keys():
        found = {key.removeprefix(_PARALLEL_PREFIX): value for key, value in found.items()}
    head = None if strict else _find_new_head(found, wanted)
    if head is not None:
        found, wanted = (
            {key: value for key, value in entries.items() if _layer(key) not in head.layers}
            for entries in (found, wanted)
        )
    _check_fit(source, found, wanted)
    with torch.no_grad():
        for key, value in found.items():
            wanted[key].copy_(value)
    return head


def _find_new_head(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> NewHead | None:
    """Return the layers whose weight and bias differ in the number of outputs alone, all by the same change."""
    unlike = [key for key in found if key in wanted and found[key].shape != wanted[key].shape]
    changes = {(found[key].shape[:1], wanted[key].shape[:1]) for key in unlike}
    if len(changes) != 1 or any(found[key].shape[1:] != wanted[key].shape[1:] for key in unlike):
        return None
    layers = tuple(dict.fromkeys(_layer(key) for key in wanted if key in unlike))
    if any(key not in unlike for key in wanted if _layer(key) in layers):  # the bias of a narrower layer differs too
        return None
    ((before,), (now,)) = changes.pop()
    return NewHead(layers, before, now)


def _layer(key: str) -> str:
    return key.rpartition(".")[0]


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


# -- files -------------------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Tensor]:
    name = path.name.lower()
    if not path.exists():
        raise InputError(f"weights file {path} does not exist.")
    if not path.is_file() or not name.endswith((".safetensors", *_PYTORCH_ENDINGS)):
        raise InputError(
            f"weights file {path} must be a file that ends in .safetensors, .pt or .pth.",
            hint="save a state dict with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors').",
        )
    try:
        return load_file(path) if name.endswith(".safetensors") else _state_dict_of(path, _unpickled(path))
    except Depl0Error:
        raise
    except SafetensorError as error:
        raise _damaged(path, str(error)) from error
    except Exception as error:  # exceptions for damaged files are undocumented: OSError, RuntimeError, EOFError, …
        reason = str(error).partition(". ")[0].partition("\n")[0] or "it ends too early"
        raise _damaged(path, f"{type(error).__name__}: {reason}") from error


def _unpickled(path: Path) -> object:
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


def _check_members(path: Path) -> None:
    """Raise if an archive has members larger than itself. torch.save does not compress, so it did not write it."""
    if zipfile.is_zipfile(path):  # else an older format, or damaged
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > path.stat().st_size:
            raise _damaged(path, f"its members would have {size:,} bytes, more than the file itself")


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(
        f"weights file {path} is damaged or holds no weights: {reason}.", hint="copy or download it again."
    )


def _state_dict_of(path: Path, content: object) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        for key in _NESTED_UNDER:
            if isinstance(content.get(key), Mapping):
                return _state_dict_of(path, content[key])
        odd = [key for key, value in content.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
        if content and not odd:
            return dict(content)
        found = f"a dict with {_some(map(repr, odd)) or 'no entries'}"
    else:
        found = f"a {type(content).__name__}"
    raise InputError(
        f"weights file {path} must hold a state dict of tensors, got {found} instead.",
        hint="a checkpoint's state dict is looked for under 'state_dict' and 'model'.",
    )


# -- published weights -------------------------------------------------------------------------------------------------


def has_published(spec: str) -> bool:
    """Return True if a spec names a network of a library that publishes trained weights."""
    library, colon, _ = spec.partition(":")
    return bool(colon) and library in LIBRARIES


def published_weights(spec: str, in_channels: int) -> tuple[str, dict[str, Tensor]]:
    """Return the published weights of a network and their source, from the library's cache or by download."""
    library, _, name = spec.partition(":")
    check_known(library, name)
    return _of_torchvision(name) if library == "torchvision" else _of_timm(name, in_channels)


def _of_torchvision(name: str) -> tuple[str, dict[str, Tensor]]:
    weights = import_library("torchvision").get_model_weights(name).DEFAULT
    with _reachable(f"torchvision:{name}", weights.url):
        # The restricted unpickler: tensors and plain containers only.
        tensors = weights.get_state_dict(progress=False, check_hash=True, map_location="cpu", weights_only=True)
    return f"torchvision ({weights})", dict(tensors)


def _of_timm(name: str, in_channels: int) -> tuple[str, dict[str, Tensor]]:
    timm = import_library("timm")
    config = timm.get_pretrained_cfg(name)
    page = f"https://huggingface.co/{config.hf_hub_id}/resolve/main/model.safetensors" if config else "the weights"
    with _reachable(f"timm:{name}", page):
        network = timm.create_model(name, pretrained=True, in_chans=in_channels)
    tag = network.pretrained_cfg.get("tag")
    return f"timm ({network.pretrained_cfg['architecture']}{f'.{tag}' if tag else ''})", network.state_dict()


@contextmanager
def _reachable(spec: str, file: str) -> Iterator[None]:
    """Raise an error that names the file to download if the library cannot download it."""
    with wrap_user_errors("model", spec):
        try:
            yield
        except (OSError, ValueError) as error:  # no connection, no such file, nothing in the cache of an offline hub
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"the trained weights of {spec} cannot be downloaded: {reason}.",
                hint=f"download {file} on a machine with a connection, and pass it: --weights FILE.",
            ) from error
