"""An exported folder on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from depl0._util.hub import FILES as LOADED
from depl0._util.optional import require
from depl0.app.deploy.torch_folder import FILES
from depl0.errors import ExportError, InputError
from depl0.host.network import first_line

SAVED = ("compact.json", "compact.safetensors")
"""files of depl0.save"""


def push_to_hub(folder: str | Path, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
    """Upload a folder as it is; return its address.

    It is one of ``depl0 export --to torch``, of ``depl0.save``, or has the files of the latter (``save_pretrained``).
    Without ``token``, huggingface_hub's own is used (``hf auth login``, or HF_TOKEN). New repositories are private.
    """
    path = Path(folder)
    check_repo(repo_id)
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing and not all((path / name).is_file() for name in SAVED):
        raise InputError(
            f"{path} is not an exported folder: {missing[0]} is missing.",
            hint="depl0 export RUN --to torch DIR, depl0.save(compact, folder), or save_pretrained.",
        )
    hub, token = _hub_and_token(token)
    api = hub.HfApi(token=token)
    try:
        api.create_repo(repo_id=repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=path,
            allow_patterns=[*FILES, *LOADED] if missing else [*FILES, "*.py"],
            commit_message="Upload a compact network",
        )
    except Exception as error:  # the network's, the server's and the library's own
        raise ExportError(
            f"{path} could not be uploaded to {repo_id}: {type(error).__name__}: {first_line(error)}",
            hint="the folder itself is whole; try again, or upload it by hand.",
        ) from error
    return f"https://huggingface.co/{repo_id}"


def check_upload(repo_id: str) -> None:
    """Say before anything is written what would be missing afterwards: a possible name, the package, a token."""
    check_repo(repo_id)
    _hub_and_token(None)


def check_repo(repo_id: str) -> None:
    """Refuse a name that no repository can have."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise InputError(f"a repository is called OWNER/NAME, got {repo_id!r} instead.")


def _hub_and_token(token: str | None) -> tuple[Any, str]:
    """Return huggingface_hub, and the token that was given or its own."""
    hub = require("huggingface_hub", "huggingface_hub", "to upload to the Hugging Face Hub", extra="hub")
    found = token or hub.get_token()
    if not found:
        raise InputError(
            "there is no token for the Hugging Face Hub.", hint="run hf auth login, or set HF_TOKEN, and try again."
        )
    return hub, found
