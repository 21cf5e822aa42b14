"""Folders that older versions wrote are still read, and give the outputs that they gave then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import depl0
from depl0.replacements.constant import ConstantLayer
from depl0.surgery.files import VERSION
from depl0.surgery.record import record_of
from tests.networks.golden import TinyDigits, TinyStream
from tests.support.compare import call, distance

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent.relative_to(HERE).as_posix() for path in HERE.glob("v*/*/compact.json"))


def network_of(name: str) -> type[nn.Module]:
    return TinyStream if name.endswith("norms") else TinyDigits


def test_every_version_of_the_format_has_its_folders() -> None:
    assert {"v1/blocks", "v1/norms"} <= set(FOLDERS)
    assert {int(name[1]) for name in FOLDERS} == set(range(1, VERSION + 1))


@pytest.mark.parametrize("name", FOLDERS)
def test_golden_folder_gives_its_outputs(name: str) -> None:
    compact = depl0.load(HERE / name, network_of(name)).eval()
    expected = load_file(HERE / name / "expected.safetensors")
    assert distance(expected["scores"], call(compact, expected["images"])) < 1e-6
    record = record_of(compact)
    counted = depl0.cost(compact, expected["images"][:1])
    assert (counted.params, counted.macs) == (record.compact.params, record.compact.macs)
    assert counted.macs < record.dense.macs and record.inputs == ((1, 1, 8, 8),)


@pytest.mark.parametrize("name", FOLDERS)
def test_golden_folder_is_written_again_as_it_is(name: str, tmp_path: Path) -> None:
    again = depl0.save(depl0.load(HERE / name, network_of(name)), tmp_path / "again")
    before, after = (json.loads((folder / "compact.json").read_text()) for folder in (HERE / name, again))
    for field in before.keys() - {"proof", "sha256"}:
        assert after[field] == before[field]
    old, new = (load_file(folder / "compact.safetensors") for folder in (HERE / name, again))
    assert old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)


def test_removed_block_stays_removed() -> None:
    compact = depl0.load(HERE / "v1" / "blocks", TinyDigits)
    assert isinstance(compact.first.conv2, ConstantLayer) and isinstance(compact.first.bn2, nn.Identity)
    assert isinstance(compact.second.conv2, nn.Conv2d)


def test_version_of_the_future_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "v1" / "blocks", tmp_path / "future")
    header = json.loads((folder / "compact.json").read_text())
    (folder / "compact.json").write_text(json.dumps({**header, "version": VERSION + 1}))
    with pytest.raises(
        depl0.errors.FormatError, match=rf"version {VERSION + 1}, .* up to {VERSION}.\nhint: install a newer"
    ):
        depl0.load(folder, TinyDigits)
