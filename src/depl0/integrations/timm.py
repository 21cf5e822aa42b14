"""Compact networks of timm in folders that can be pushed to the Hugging Face Hub and loaded by name.

See docs/integrations.md.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from depl0._util.io import atomic_write, read_json
from depl0.errors import FormatError, InputError, NotInstalledError
from depl0.surgery.files import load, save
from depl0.surgery.hub import local_folder

CONFIG = "config.json"


def save_pretrained(compact: nn.Module, folder: str | os.PathLike[str], name: str, **arguments: Any) -> Path:
    """Write a pruned model of timm to a folder: the files of :func:`depl0.save`, and how the original model is built.

    Args:
        compact: the network.
        folder: where to write; created if it does not exist.
        name: the name passed to ``timm.create_model``.
        arguments: arguments of ``timm.create_model`` (``num_classes``, …), except ``pretrained``.

    Raises:
        InputError: ``compact`` is not a pruned model, or timm has no network of that name.
    """
    timm = _timm()
    if not timm.is_model(name):
        raise InputError(f"timm has no network {name!r}.", hint="pass the name that timm.create_model took.")
    target = save(compact, folder)
    text = json.dumps({"architecture": name, "arguments": arguments}, indent=1) + "\n"
    atomic_write(target / CONFIG, text.encode())
    return target


def load_pretrained(source: str | os.PathLike[str]) -> nn.Module:
    """Return the network of a folder that :func:`save_pretrained` wrote, in evaluation mode.

    Args:
        source: the folder, or ``hf://OWNER/NAME`` on the Hub.

    Raises:
        FormatError: the folder is damaged, or of a network that timm does not have.
        DownloadError: it cannot be downloaded.
    """
    timm, folder = _timm(), local_folder(source)
    try:
        config = read_json(folder / CONFIG)
        name, arguments = config.get("architecture"), config.get("arguments")
    except (OSError, ValueError, AttributeError):
        name = arguments = None
    if not isinstance(name, str) or not timm.is_model(name) or not isinstance(arguments, dict):
        raise FormatError(
            f"{folder / CONFIG} names no network of timm.",
            hint="pass a folder that depl0.integrations.timm.save_pretrained wrote.",
        )
    return load(folder, lambda: timm.create_model(name, **{**arguments, "pretrained": False}))


def _timm() -> Any:
    if find_spec("timm") is None:
        raise NotInstalledError(
            "timm is needed for depl0.integrations.timm, but not installed.", hint="pip install timm"
        )
    return import_module("timm")
