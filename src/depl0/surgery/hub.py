"""Folders on the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from depl0._util.optional import require
from depl0.errors import DownloadError, InputError

PREFIX = "hf://"
FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md")
"""downloaded files: none of them contains code"""


def local_folder(source: str | os.PathLike[str]) -> Path:
    """Return a local folder, or download ``hf://OWNER/NAME`` or ``hf://OWNER/NAME@REVISION`` to the Hub's cache.

    Raises:
        InputError: no repository can have that name.
        DownloadError: it cannot be downloaded.

    Example:
        >>> local_folder("runs/small")
        PosixPath('runs/small')
    """
    text = os.fspath(source)
    if not isinstance(text, str) or not text.startswith(PREFIX):
        return Path(source)
    name, _, revision = text.removeprefix(PREFIX).partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise InputError(f"a folder on the Hub is called hf://OWNER/NAME, got {text!r} instead.")
    hub = require("huggingface_hub", "huggingface_hub", "to load from the Hugging Face Hub", extra="hub")
    try:
        return Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=list(FILES)))
    except Exception as error:  # errors of the network, of the server, and of the library itself
        words = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise DownloadError(
            f"{text} could not be downloaded: {words}",
            hint="is the name right, and are you logged in (hf auth login) if the repository is private?",
        ) from error
