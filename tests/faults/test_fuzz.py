"""Thousands of broken files: always an error of our own, or the right result; never a crash or a wrong network."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given

import depl0
from depl0.app.data import open_data
from depl0.app.recipes.toml import parse_recipe, write_recipe
from depl0.app.runs.checkpoint import load_newest
from depl0.app.training.search import SearchPhase
from depl0.app.training.session import Sums, save_phase
from depl0.errors import DataError, FormatError, InputError
from depl0.gated import GatedModel
from tests.networks.tiny import TinyNet, tiny_gated, tiny_recipe
from tests.support.bounds import bounded
from tests.support.hostile_values import cases, damaged_bytes, only, seeds
from tests.support.layouts import write_cifar10
from tests.support.session import make_session

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("remembered_plans")]

# -- compact networks ------------------------------------------------------------------------------------------------


def closed(gated: GatedModel) -> GatedModel:
    gated.fix_gates((torch.arange(14) % 3 > 0).float())
    return gated


COMPACT = closed(tiny_gated()).extract().eval()
EXAMPLE = torch.linspace(-1, 1, 72).view(2, 1, 6, 6)
EXPECTED = COMPACT(EXAMPLE).detach()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    folder = depl0.save(COMPACT, tmp_path_factory.mktemp("compact"))
    return folder, (folder / "compact.json").read_bytes(), (folder / "compact.safetensors").read_bytes()


def check_load(folder: Path) -> None:
    with bounded(), only(FormatError):
        loaded = depl0.load(folder, TinyNet).eval()
        assert torch.equal(loaded(EXAMPLE), EXPECTED), "another network"


@pytest.mark.parametrize("file", ["compact.json", "compact.safetensors"])
@cases(150)
@given(rng=seeds)
def test_damaged_compact_networks(saved: tuple[Path, bytes, bytes], file: str, rng: Random) -> None:
    folder, header, values = saved
    for name, content in (("compact.json", header), ("compact.safetensors", values)):
        (folder / name).write_bytes(damaged_bytes(rng, content) if name == file else content)
    check_load(folder)


# -- recipes ---------------------------------------------------------------------------------------------------------

RECIPE = tiny_recipe()
TEXT = write_recipe(RECIPE)


@cases(500)
@given(rng=seeds)
def test_damaged_recipes(rng: Random) -> None:
    with bounded(), only(InputError):
        text = damaged_bytes(rng, TEXT.encode()).decode(errors="replace")
        found = parse_recipe(text)
        assert parse_recipe(write_recipe(found)) == found


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a search."""
    session, gated = make_session(tmp_path_factory.mktemp("run"), search__warmup=0.0)
    save_phase(session, SearchPhase(session, gated), 1, 2, Sums(torch.zeros(3), torch.zeros(2)))
    (path,) = session.folder.checkpoints.iterdir()
    return path


@cases(200)
@given(rng=seeds)
def test_damaged_checkpoints(checkpoint: Path, tmp_path: Path, rng: Random) -> None:
    """They are signed again, as a stranger would do it."""
    for path in tmp_path.iterdir():
        path.unlink()
    content = damaged_bytes(rng, checkpoint.read_bytes())
    name = f"step-000000003-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    (tmp_path / name).write_bytes(content)
    with bounded(), only(FormatError):
        load_newest(tmp_path)


# -- data ------------------------------------------------------------------------------------------------------------


@cases(80)
@given(rng=seeds)
def test_damaged_cifar_files(tmp_path: Path, rng: Random) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    if not folder.exists():
        write_cifar10(tmp_path)
    path = folder / rng.choice(["data_batch_3.bin", "test_batch.bin"])
    whole = path.read_bytes()
    path.write_bytes(damaged_bytes(rng, whole))
    try:
        with bounded(), only(DataError):
            images, labels = next(iter(open_data(f"cifar10:{tmp_path}").train.epoch(0)))
            assert images.isfinite().all() and 0 <= int(labels.min()) <= int(labels.max()) < 10
    finally:
        path.write_bytes(whole)
