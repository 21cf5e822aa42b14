"""Code of files from elsewhere: it runs only after --trust-code, and the refusal names what would run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Type, type_command

__all__ = ["type_command"]
pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

FILES = """
import numpy as np
from torch import nn
def data():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (48, 1, 8, 6)).astype(np.uint8), rng.integers(0, 3, 48)
    return (images[:32], labels[:32]), (images[32:], labels[32:])
def net(num_classes, image_size):
    assert image_size == (8, 6)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 24, num_classes))
"""
WORDS = "prune --model mine.py:net --data mine.py:data --epochs 1 --finetune-epochs 0 --device cpu --batch-size 16"


@pytest.fixture
def stranger(type_command: Type, tmp_path: Path) -> Path:
    """Return a folder as somebody else may send it: a run, and the code that it names."""
    (tmp_path / "mine.py").write_text(FILES)
    assert type_command(f"{WORDS} --out {tmp_path}/run").code == 0
    sent = tmp_path / "sent"
    shutil.copytree(tmp_path / "run", sent / "run")
    (tmp_path / "mine.py").rename(sent / "mine.py")
    (sent / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{FILES}")
    return sent


@pytest.mark.parametrize("command", ["eval", "export --to safetensors", "recipe"])
def test_the_folder_of_a_stranger(
    command: str, stranger: Path, type_command: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stranger)
    words = f"{command} run"
    if command == "recipe":
        (stranger / "run" / "summary.json").unlink()
        words = "prune run/recipe.toml --out run --resume"
    typed = type_command(words)
    assert typed.code == 2, typed.err
    assert f"would run {stranger / 'mine.py'}" in typed.err and "--trust-code" in typed.err
    assert not (tmp_path / "ran").exists()
    typed = type_command(f"{words} --trust-code")
    assert typed.code == 0, typed.err
    assert (tmp_path / "ran").exists()
    assert type_command("eval run").code == 0, "it is asked once"


def test_a_module_in_the_current_folder(stranger: Path, type_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stranger)
    recipe = stranger / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("mine.py:", "mine:"))
    typed = type_command("eval run")
    assert typed.code == 2 and f"would run {stranger / 'mine.py'}" in typed.err
    assert not (stranger.parent / "ran").exists()
    assert type_command("eval run --model lenet5 --data digits").code == 2  # another network, but no question of trust
