"""Checkpoints: what goes in comes out, and damage is noticed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from depl0.app.runs import checkpoint
from depl0.app.runs.checkpoint import load_newest, save_checkpoint
from depl0.errors import FormatError


def state_of_everything() -> dict[str, Any]:
    """Two optimizers that have worked, a network, random states, and odd values."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
        torch.optim.Adam(model.parameters(), lr=0.1, fused=True),
    ]
    model(torch.randn(2, 1, 4, 4)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    return {
        "model": dict(model.state_dict()),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "rng": [{"torch": torch.get_rng_state(), "python": random.getstate()}],
        "a/b": torch.ones(2),
        "a": {"b": torch.zeros(2), 3: (1, 2.5, None, True, "text")},
        "empty": [[], {}, ()],
        "float": 0.1 + 0.2,
        "half": torch.tensor(1.5, dtype=torch.bfloat16),
        "strided": torch.arange(6).view(2, 3).T,
    }


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right


def names(folder: Path) -> list[str]:
    return sorted(path.name[:14] for path in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    state = state_of_everything()
    save_checkpoint(tmp_path, 7, state, keep=1)
    found = load_newest(tmp_path)
    assert found is not None
    assert found[0] == 7
    assert_same(found[1], state)


def test_it_is_one_safetensors_file_and_nothing_else(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 7, state_of_everything(), keep=1)
    assert [path] == list(tmp_path.iterdir())
    assert re.fullmatch(r"step-000000007-[0-9a-f]{16}\.safetensors", path.name)
    tree = json.loads(load_file(path)["tree"].numpy().tobytes())
    assert tree["state"]["dict"][0][0] == "model"


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (2, 10, 100):
        save_checkpoint(tmp_path, step, {"step": step}, keep=2)
    assert names(tmp_path) == ["step-000000010", "step-000000100"]
    assert load_newest(tmp_path) == (100, {"step": 100})


def test_a_step_that_is_saved_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 4, {"first": True}, keep=2)
    for first in (True, False):
        save_checkpoint(tmp_path, 5, {"first": first}, keep=2)
    assert names(tmp_path) == ["step-000000004", "step-000000005"]
    assert load_newest(tmp_path) == (5, {"first": False})


def test_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "none") is None
    assert load_newest(tmp_path) is None


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot hold a ndarray"):
        save_checkpoint(tmp_path, 1, {"a": np.ones(3)}, keep=1)
    assert load_newest(tmp_path) is None


def test_a_flip_of_any_byte_and_a_cut_at_any_place_are_noticed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"a": 1}, keep=2)
    path = save_checkpoint(tmp_path, 2, {"a": torch.ones(9)}, keep=2)
    content, notes = path.read_bytes(), []
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        assert load_newest(tmp_path, notes.append) == (1, {"a": 1})
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert load_newest(tmp_path) == (1, {"a": 1})
    assert f"skipping corrupt checkpoint {path.name} (its checksum is wrong)" in notes


def test_a_newer_format_is_not_read_and_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {}, keep=2)
    monkeypatch.setattr(checkpoint, "VERSION", 3)
    save_checkpoint(tmp_path, 2, {}, keep=2)
    monkeypatch.undo()
    with pytest.raises(FormatError, match="written by a newer depl0"):
        load_newest(tmp_path)


def test_a_damaged_newer_one_does_not_push_out_good_ones(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"good": True}, keep=2)
    save_checkpoint(tmp_path, 9, {}, keep=2).write_bytes(b"")
    save_checkpoint(tmp_path, 2, {"good": True}, keep=1)
    assert load_newest(tmp_path) == (2, {"good": True})
    assert names(tmp_path) == ["step-000000002"]


def test_leftovers_of_a_killed_save_are_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".0123.part").touch()
    save_checkpoint(tmp_path, 5, {}, keep=1)
    assert names(tmp_path) == ["step-000000005"]
