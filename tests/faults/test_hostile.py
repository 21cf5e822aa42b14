"""Files from strangers: none of them runs code, and each is refused in words."""

from __future__ import annotations

import io
import pickle  # noqa: TID251 - the weapon, not the tool
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import depl0
from depl0.app.cli.app import main
from depl0.app.data import open_data
from depl0.app.recipes.toml import read_recipe, write_recipe
from depl0.app.runs.checkpoint import load_newest, save_checkpoint
from depl0.app.weights import load_weights
from depl0.errors import DataError, Depl0Error, FormatError, InputError
from tests.networks.tiny import TinyNet, run, tiny_gated, tiny_recipe

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("remembered_plans")]


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.mark), "w")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it ran"


def plain(mark: Path) -> bytes:
    return pickle.dumps(Payload(mark))


def state_dict(mark: Path) -> bytes:
    """What torch.save writes of a state dict with something in it."""
    file = io.BytesIO()
    torch.save({**TinyNet().state_dict(), "extra": Payload(mark)}, file)  # noqa: TID251 - the weapon again
    return file.getvalue()


def old_state_dict(mark: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"w": Payload(mark)}, file, _use_new_zipfile_serialization=False)  # noqa: TID251
    return file.getvalue()


WEAPONS = {"pickle": plain, "torch": state_dict, "old torch": old_state_dict}


@pytest.mark.parametrize("weapon", WEAPONS.values(), ids=WEAPONS)
def test_the_weapon_is_loaded(mark: Path, weapon: Callable[[Path], bytes]) -> None:
    """Else the tests below would prove nothing."""
    content = weapon(mark)
    assert not mark.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if weapon is plain:
            pickle.loads(content)
        else:
            torch.load(io.BytesIO(content), weights_only=False)  # noqa: TID251
    assert mark.exists()


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.pth.tar", "w.ckpt", "w.bin", "w.safetensors", "w.pkl", "w"])
@pytest.mark.parametrize("weapon", WEAPONS.values(), ids=WEAPONS)
def test_weights(tmp_path: Path, mark: Path, weapon: Callable[[Path], bytes], name: str) -> None:
    (tmp_path / name).write_bytes(weapon(mark))
    with pytest.raises(InputError, match="weights file"):
        load_weights(TinyNet(), tmp_path / name)
    assert not mark.exists()


@pytest.mark.parametrize("weapon", WEAPONS.values(), ids=WEAPONS)
@pytest.mark.parametrize("file", ["compact.json", "compact.safetensors"])
def test_compact_networks(tmp_path: Path, mark: Path, weapon: Callable[[Path], bytes], file: str) -> None:
    folder = depl0.save(tiny_gated().extract(), tmp_path / "compact")
    (folder / file).write_bytes(weapon(mark))
    with pytest.raises(FormatError):
        depl0.load(folder, TinyNet)
    assert not mark.exists()


@pytest.mark.parametrize("weapon", WEAPONS.values(), ids=WEAPONS)
@pytest.mark.parametrize("file", ["state.json", "state.safetensors", "../newest"])
def test_checkpoints(tmp_path: Path, mark: Path, weapon: Callable[[Path], bytes], file: str) -> None:
    path = save_checkpoint(tmp_path / "c", 1, {"a": torch.ones(3)}, keep=1)
    (path / file).write_bytes(weapon(mark))
    if file == "../newest":  # it is only for people
        assert load_newest(tmp_path / "c") is not None
    else:
        with pytest.raises(FormatError, match=r"all in .* are corrupt"):
            load_newest(tmp_path / "c")
    assert not mark.exists()


@pytest.mark.parametrize("weapon", WEAPONS.values(), ids=WEAPONS)
def test_recipes_and_files_of_a_run(tmp_path: Path, mark: Path, weapon: Callable[[Path], bytes]) -> None:
    (tmp_path / "recipe.toml").write_bytes(weapon(mark))
    with pytest.raises(InputError, match="recipe file"):
        read_recipe(tmp_path / "recipe.toml")
    with pytest.raises(InputError, match="recipe file"):
        run(tiny_recipe(), tmp_path, resume=True)
    (tmp_path / "recipe.toml").write_text(write_recipe(tiny_recipe(search__epochs=0, finetune__epochs=0)))
    (tmp_path / "summary.json").write_bytes(weapon(mark))
    (tmp_path / "lock").write_bytes(weapon(mark))
    run(tiny_recipe(search__epochs=0, finetune__epochs=0), tmp_path, resume=True)
    assert not mark.exists()


DATA = {
    "mnist": ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    "fashion-mnist": ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
    "cifar10": [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"],
    "cifar10  ": ["data_batch_1", "test_batch"],
    "cifar100": ["train.bin", "test.bin"],
    "folder": ["train/a/1.png", "val/a/1.png"],
}


@pytest.mark.parametrize("weapon", WEAPONS.values(), ids=WEAPONS)
@pytest.mark.parametrize("kind", DATA)
def test_data(tmp_path: Path, mark: Path, weapon: Callable[[Path], bytes], kind: str) -> None:
    for file in DATA[kind]:
        (tmp_path / "data" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / file).write_bytes(weapon(mark))
    with pytest.raises(DataError):
        next(iter(open_data(f"{kind.strip()}:{tmp_path / 'data'}").train.epoch(0)))
    assert not mark.exists()


def test_data_of_the_users_own_is_code_and_must_look_like_it(tmp_path: Path, mark: Path) -> None:
    """``file.py:make`` runs a Python file, as its user asks. Nothing else is taken for one."""
    for name in ("data.pkl", "data.pt", "data.npy", "data.py"):
        (tmp_path / name).write_bytes(plain(mark))
        with pytest.raises(Depl0Error):
            open_data(f"{tmp_path / name}:make")
    assert not mark.exists()


def test_arrays_that_unpickle_do_not(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's function that gives objects is refused before anything is made of them."""
    (tmp_path / "own.py").write_text(
        "import numpy as np\ndef make():\n    a = np.array([object()], dtype=object)\n    return (a, a), (a, a)\n"
    )
    with pytest.raises(DataError):
        open_data(f"{tmp_path / 'own.py'}:make")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_the_command_says_so(tmp_path: Path, mark: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(state_dict(mark))
    recipe = tmp_path / "r.toml"
    recipe.write_text(write_recipe(tiny_recipe()))
    code = main(["prune", str(recipe), "--weights", str(tmp_path / name), "--out", str(tmp_path / "run")])
    assert code == 2
    message = capsys.readouterr().err
    assert "error: weights file" in message and "Traceback" not in message
    assert not mark.exists()
