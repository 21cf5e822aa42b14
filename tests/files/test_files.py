"""Compact networks on disk: the same network comes back, or a clear error."""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.networks.structures import STRUCTURES, LayerScale, NoNorm, Residual, TiedWeights, image
from tests.support.compare import call, distance, liven, pruned
from torch import nn

import depl0
from depl0.surgery.record import record_of


@pytest.fixture(scope="module")
def compact() -> nn.Module:
    torch.manual_seed(0)
    return pruned(liven(Residual(), image()), image(), seed=2)[1]


@pytest.fixture
def folder(compact: nn.Module, tmp_path: Path) -> Path:
    return depl0.save(compact, tmp_path / "deep" / "folder")


def test_round_trip(compact: nn.Module, folder: Path) -> None:
    loaded = depl0.load(folder, Residual)
    assert type(loaded) is Residual
    assert not any(module.training for module in loaded.modules())
    assert distance(call(compact, image()), call(loaded, image())) == 0
    state = compact.state_dict()
    assert state.keys() == loaded.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert loaded.stem.out_channels == compact.stem.out_channels < 8
    assert vars(record_of(loaded).certificate) == vars(record_of(compact).certificate)


def test_only_two_files_and_no_pickle(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ["compact.json", "compact.safetensors"]
    header = json.loads((folder / "compact.json").read_text())
    assert header["format"] == "depl0-compact" and header["version"] == 1 and header["network"] == "Residual"
    assert header["cost"]["compact"]["params"] < header["cost"]["dense"]["params"]
    assert load_file(folder / "compact.safetensors").keys() == Residual().state_dict().keys()


FILE_OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.listdir", "os.scandir", "glob.glob"}


def killed_before(operation: int, save: Callable[[], Any], folder: Path) -> bool:
    """Save in a process of its own, and kill it before this operation on a file; return False if there were fewer."""
    with warnings.catch_warnings(action="ignore"):  # of threads, which the child does not use
        child = os.fork()
    if child == 0:
        operations = count()

        def kill(event: str, arguments: tuple[Any, ...]) -> None:
            if event in FILE_OPERATIONS and str(folder) in str(arguments[0]) and next(operations) == operation:
                os._exit(9)

        sys.addaudithook(kill)
        save()
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def test_a_save_that_is_killed_leaves_the_former_or_the_new_network(compact: nn.Module, tmp_path: Path) -> None:
    former, new = copy.deepcopy(compact), copy.deepcopy(compact)
    for model, value in ((former, 1.0), (new, 2.0)):
        with torch.no_grad():
            next(model.parameters()).fill_(value)
    values = []
    for operation in count():
        folder = depl0.save(former, tmp_path / str(operation))
        was_killed = killed_before(operation, lambda folder=folder: depl0.save(new, folder), folder)
        values.append(float(next(depl0.load(folder, Residual).parameters()).detach().flatten()[0]))
        depl0.save(former, folder)
        assert not list(folder.glob("compact-*"))
        if not was_killed:
            break
    assert len(values) > 8 and values == sorted(values) and set(values) == {1.0, 2.0}


def test_fine_tuned_network_is_saved_with_its_new_values(folder: Path, tmp_path: Path) -> None:
    loaded = depl0.load(folder, Residual).train()
    loaded(image()).sum().backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()
    again = depl0.load(depl0.save(loaded, tmp_path / "tuned"), Residual).eval()
    assert distance(call(loaded.eval(), image()), call(again, image())) == 0


COMING_BACK = ["TiedWeights", "LayerScale", "Grouped", "FrozenBatchNorm", "Maxout"]


@pytest.mark.parametrize("name", COMING_BACK)
def test_structures_come_back(name: str, tmp_path: Path) -> None:
    structure = STRUCTURES[name]

    def factory() -> nn.Module:
        torch.manual_seed(4)
        return structure.build()

    _, compact = pruned(factory(), structure.inputs)
    loaded = depl0.load(depl0.save(compact, tmp_path), factory).eval()
    assert distance(call(compact, structure.inputs), call(loaded, structure.inputs)) == 0
    if isinstance(loaded, TiedWeights):
        assert loaded.one.weight is loaded.other.weight
    if isinstance(loaded, LayerScale):  # a buffer that is not saved is cut like the others
        assert loaded.unsaved.shape[1] == loaded.three.out_channels < 5


def test_bfloat16_comes_back(tmp_path: Path) -> None:
    _, compact = pruned(Residual().bfloat16(), image().bfloat16())
    loaded = depl0.load(depl0.save(compact, tmp_path), Residual).eval()
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert distance(call(compact, image().bfloat16()), call(loaded, image().bfloat16())) == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_only_compact_networks_are_saved(tmp_path: Path) -> None:
    for wrong in (Residual(), depl0.attach(Residual(), image()), None):
        with pytest.raises(depl0.errors.InputError, match=r"Expected a compact network, got .*\nhint: .*extract"):
            depl0.save(wrong, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def refused(folder: Path, text: str, factory: Any = Residual) -> None:
    with pytest.raises(depl0.errors.FormatError, match=f"(?s){text}"):
        depl0.load(folder, factory)


@pytest.mark.parametrize("name", ["compact.json", "compact.safetensors"])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, rf"{name} does not exist.*\nhint: pass a folder that depl0\.save wrote")


@pytest.mark.parametrize("position", [60, -1])
def test_tampered_values(folder: Path, position: int) -> None:
    path = folder / "compact.safetensors"
    values = bytearray(path.read_bytes())
    values[position] ^= 1
    path.write_bytes(bytes(values))
    refused(folder, "damaged or was changed")


CHANGES: dict[str, Any] = {
    "network": "Other",
    "cost": {"dense": {"params": 1, "macs": 1}, "compact": {"params": 1, "macs": 1}},
    "certificate": {"max_error": 0.0, "dtype": "float64", "inputs": 99},
    "inputs": [[1, 3, 9, 9]],
    "proof": None,
    "replaced": {"one": {"kind": "constant", "layer": "one", "norm": None, "silent": True}},
    "dense_shapes": {},
    "keep": {},
    "numbers": {"one": {"0": 1}},
    "sha256": "0" * 64,
}


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_tampered_header(folder: Path, field: str, how: str) -> None:
    path = folder / "compact.json"
    header = json.loads(path.read_text())
    assert set(header) == {*CHANGES, "format", "version"}
    if how == "missing":
        del header[field]
    else:
        header[field] = CHANGES[field]
    path.write_text(json.dumps(header))
    refused(folder, r"damaged.*\nhint: copy")


@pytest.mark.parametrize(
    "text", ["{", '{"format": "other"}', "\ud800".encode("utf-16", "surrogatepass"), "[" * 100_000]
)
def test_header_that_is_no_header(folder: Path, text: str | bytes) -> None:
    (folder / "compact.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(folder, "is not a JSON file|does not describe a compact network")


def test_a_network_in_place_of_its_function(compact: nn.Module, folder: Path) -> None:
    with pytest.raises(
        depl0.errors.InputError, match="must be a function that builds the original model, got Residual"
    ):
        depl0.load(folder, compact)


def test_folder_of_another_network(folder: Path) -> None:
    class Wider(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 9, 3, padding=1)

    refused(
        folder,
        r"another network: stem\.weight was of shape \(8, 3, 3, 3\) there and is of shape \(9, 3, 3, 3\) .*\nhint: ",
        Wider,
    )
    refused(folder, r"another network: head\.weight was of shape \(4, 8\) there and is of shape \(4, 6\)", NoNorm)
