"""Checkpoints: what goes in comes out, and damage is noticed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    return sorted(path.name for path in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    state = state_of_everything()
    save_checkpoint(tmp_path, 7, state, keep=1)
    found = load_newest(tmp_path)
    assert found is not None
    assert found[0] == 7
    assert_same(found[1], state)


def test_it_is_json_and_safetensors_and_nothing_else(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 7, state_of_everything(), keep=1)
    assert names(tmp_path) == ["newest", "step-000000007"]
    assert (tmp_path / "newest").read_text() == "step-000000007\n"
    assert names(path) == ["state.json", "state.safetensors"]
    json.loads((path / "state.json").read_text())
    assert b"\x80\x04" not in (path / "state.json").read_bytes()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 100):
        save_checkpoint(tmp_path, step, {"step": step}, keep=2)
    assert names(tmp_path) == ["newest", "step-000000010", "step-000000100"]
    assert load_newest(tmp_path) == (100, {"step": 100})


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, {"try": 1}, keep=1)
    save_checkpoint(tmp_path, 5, {"try": 2}, keep=1)
    assert load_newest(tmp_path) == (5, {"try": 2})
    assert names(tmp_path) == ["newest", "step-000000005-2"]  # the first one was not touched before this one was whole


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"a": 1}, keep=1)
    with pytest.raises(TypeError, match="ndarray"):
        save_checkpoint(tmp_path, 2, {"a": np.zeros(1)}, keep=1)
    assert load_newest(tmp_path) == (1, {"a": 1})


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(bytes(content))


def damage_remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("file", ["state.json", "state.safetensors"])
@pytest.mark.parametrize("damage", [damage_cut, damage_flip, damage_remove])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, file: str, damage: Any) -> None:
    save_checkpoint(tmp_path, 1, {"a": torch.ones(9)}, keep=2)
    newest = save_checkpoint(tmp_path, 2, {"a": torch.zeros(9)}, keep=2)
    damage(newest / file)
    found = load_newest(tmp_path)
    assert found is not None
    assert found[0] == 1
    assert_same(found[1], {"a": torch.ones(9)})


def test_a_newer_format_is_not_read_and_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {}, keep=2)
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    save_checkpoint(tmp_path, 2, {}, keep=2)
    monkeypatch.undo()
    with pytest.raises(FormatError, match="written by a newer depl0"):
        load_newest(tmp_path)


def test_a_damaged_newer_one_does_not_push_out_good_ones(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"good": True}, keep=2)
    damage_cut(save_checkpoint(tmp_path, 9, {}, keep=2) / "state.json")
    save_checkpoint(tmp_path, 2, {"good": True}, keep=1)
    assert load_newest(tmp_path) == (2, {"good": True})


def test_leftovers_of_a_killed_save_are_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".aside-000000004").mkdir()
    save_checkpoint(tmp_path, 5, {}, keep=1)
    assert names(tmp_path) == ["newest", "step-000000005"]
