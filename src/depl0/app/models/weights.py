"""Trained weights for a network: from a file (safetensors, or a PyTorch state dict), or published by a library.

A ``.pt`` file is a pickle, which can hold code. It is read by PyTorch's restricted unpickler, which allows only tensors
and plain containers.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
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
_SECONDS = 10
"""until the hub responds; a download may take any time"""


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


@final
@dataclass(frozen=True)
class Published:
    """Weights as they were published: with the classes that they were trained for."""

    source: str
    """human-readable origin of the weights"""
    tensors: dict[str, Tensor]


def has_published(spec: str) -> bool:
    """Return True if a spec names a network of a library that publishes trained weights."""
    library, colon, _ = spec.partition(":")
    return bool(colon) and library in LIBRARIES


def names_weights(spec: str) -> bool:
    """Return True if a spec also names trained weights: a tag of timm after a dot.

    >>> names_weights("timm:mobilenetv2_050.lamb_in1k"), names_weights("timm:resnet18"), names_weights("nets.py:make")
    (True, False, False)
    """
    library, _, name = spec.partition(":")
    return library == "timm" and "." in name


def published_weights(spec: str, in_channels: int) -> Published:
    """Return the published weights of a network, from the library's cache or by download."""
    library, _, name = spec.partition(":")
    check_known(library, name)
    return _of_torchvision(name) if library == "torchvision" else _of_timm(name, in_channels)


def _of_torchvision(name: str) -> Published:
    weights = import_library("torchvision").get_model_weights(name).DEFAULT
    with _reachable(f"torchvision:{name}", weights.url):
        # The restricted unpickler: tensors and plain containers only.
        tensors = weights.get_state_dict(progress=False, check_hash=True, map_location="cpu", weights_only=True)
    return Published(f"torchvision ({weights})", dict(tensors))


def _of_timm(name: str, in_channels: int) -> Published:
    timm = import_library("timm")
    config = timm.get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url or config.file):
        known = [known for known in timm.list_pretrained() if known.partition(".")[0] == name.partition(".")[0]]
        raise InputError(
            f"timm publishes no trained weights for {name}.",
            hint=f"there are {', '.join(known)}." if known else "pass a file: --weights FILE.",
        )
    tagged = f"{config.architecture}.{config.tag}" if config.tag else name
    page = f"https://huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else ""
    with _reachable(f"timm:{name}", f"{page}/resolve/main/model.safetensors" if page else str(config.url)):
        if page and not _is_cached(config.hf_hub_id):
            _ask(page)  # the hub's own client retries for a minute before it reports a missing connection
        network = timm.create_model(name, pretrained=True, in_chans=in_channels)
    return Published(f"timm ({tagged})", network.state_dict())


def _is_cached(repository: str) -> bool:
    hub = import_library("timm", "huggingface_hub")
    files = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(hub.try_to_load_from_cache(repository, file), str) for file in files)


def _ask(address: str) -> None:
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_SECONDS).close()
    except urllib.error.HTTPError:
        return  # the server responds


@contextmanager
def _reachable(spec: str, file: str) -> Iterator[None]:
    """Raise an error that names the file to download if the library cannot download it."""
    with wrap_user_errors("model", spec):
        try:
            yield
        except Depl0Error:
            raise
        except (OSError, ValueError) as error:  # no connection, no such file, nothing in the cache of an offline hub
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"the trained weights of {spec} cannot be downloaded: {reason}.",
                hint=f"download {file} on a machine with a connection, and pass it: --weights FILE.",
            ) from error
