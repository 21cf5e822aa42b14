"""Deploy the network of a run: metadata for exported files, int8 with its accuracy, upload to the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from depl0._util.io import FILES as UPLOADED
from depl0._util.optional import require
from depl0.errors import ExportError, InputError
from depl0.host.network import first_line

SAVED = ("compact.json", "compact.safetensors")
"""files written by depl0.save"""


def push_to_hub(folder: str | Path, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
    """Upload a folder written by ``depl0.save`` or ``save_pretrained`` and return its address.

    Without ``token``, huggingface_hub's own is used (``hf auth login``, or HF_TOKEN). New repositories are private.
    """
    path = Path(folder)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise InputError(f"the name of a repository must be OWNER/NAME, got {repo_id!r} instead.")
    missing = [name for name in SAVED if not (path / name).is_file()]
    if missing:
        raise InputError(
            f"{path} is not a saved network: {missing[0]} is missing.",
            hint="use a folder written by depl0.save or save_pretrained, or RUN/compact.",
        )
    hub = require("huggingface_hub", "huggingface_hub", "to upload to the Hugging Face Hub", extra="hub")
    token = token or hub.get_token()
    if not token:
        raise InputError("no token for the Hugging Face Hub was found.", hint="run hf auth login, or set HF_TOKEN.")
    api = hub.HfApi(token=token)
    try:
        api.create_repo(repo_id=repo_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id, folder_path=path, allow_patterns=list(UPLOADED), commit_message="Upload a pruned network"
        )
    except Exception as error:  # errors of the network, of the server, and of the library itself
        raise ExportError(
            f"{path} could not be uploaded to {repo_id}: {type(error).__name__}: {first_line(error)}",
            hint="the folder itself is complete; try again, or upload it by hand.",
        ) from error
    return f"https://huggingface.co/{repo_id}"
