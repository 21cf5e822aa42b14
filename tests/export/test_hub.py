"""Upload of a saved network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depl0.app.deploy import push_to_hub
from depl0.errors import ExportError, InputError


class StandIn:
    """A hub on this machine."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def create_repo(self, **options: Any) -> None:
        self.seen.append(("create", options))

    def upload_folder(self, **options: Any) -> None:
        self.seen.append(("upload", options))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for name in ("compact.json", "compact.safetensors"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_upload_to_a_stand_in(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = StandIn()
    tokens: list[str] = []
    module = SimpleNamespace(HfApi=lambda token: tokens.append(token) or hub, get_token=lambda: "secret")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    assert push_to_hub(saved, "me/small") == "https://huggingface.co/me/small"
    (first, created), (second, uploaded) = hub.seen
    assert (first, second, tokens) == ("create", "upload", ["secret"])
    assert created == {"repo_id": "me/small", "private": True, "exist_ok": True}
    patterns = set(uploaded["allow_patterns"])
    assert {"*.json", "*.safetensors"} <= patterns and "*.py" not in patterns

    def fail(**options: Any) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(hub, "upload_folder", fail)
    with pytest.raises(ExportError, match="could not be uploaded to me/small: ConnectionError: nobody answers"):
        push_to_hub(saved, "me/small")
    module.get_token = lambda: None
    with pytest.raises(InputError, match=r"no token for the Hugging Face Hub was found\.\nhint: run hf auth login"):
        push_to_hub(saved, "me/small")


def test_what_cannot_be_uploaded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="OWNER/NAME, got 'small'"):
        push_to_hub(saved, "small")
    with pytest.raises(InputError, match=r"huggingface_hub is needed .*\nhint: pip install"):
        push_to_hub(saved, "me/small")
    (saved / "compact.safetensors").unlink()
    with pytest.raises(InputError, match=r"is not a saved network: compact\.safetensors is missing"):
        push_to_hub(saved, "me/small")
