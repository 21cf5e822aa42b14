"""Trained weights published by timm and torchvision."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from depl0._util.user_code import wrap_user_errors
from depl0.app.models.spec import check_known, import_library
from depl0.errors import Depl0Error, InputError

LIBRARIES = ("torchvision", "timm")
_SECONDS = 10
"""until the hub responds; a download may take any time"""


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
    return (_of_torchvision if library == "torchvision" else _of_timm)(name, in_channels)


def _of_torchvision(name: str, in_channels: int) -> Published:
    models = import_library("torchvision", "torchvision.models")
    weights = models.get_model_weights(name).DEFAULT
    with _reachable(f"torchvision:{name}", weights.url):
        # The restricted unpickler: tensors and plain containers only.
        tensors = weights.get_state_dict(progress=False, check_hash=True, map_location="cpu", weights_only=True)
    return Published(f"torchvision ({weights})", dict(tensors))


def _of_timm(name: str, in_channels: int) -> Published:
    timm: Any = import_library("timm", "timm")
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
    hub: Any = import_library("timm", "huggingface_hub")
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
    except Exception as error:  # errors of the library itself
        with wrap_user_errors("model", spec):
            raise error
