"""Links, pipes and devices in place of files: nothing is written through a link, and nothing waits for a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import depl0
from depl0._util import io
from depl0.app.reports.canvas import write
from depl0.app.runs.checkpoint import save_checkpoint
from depl0.app.runs.folder import Lines, RunFolder
from depl0.app.runs.lock import HOLDER, LOCK, locked
from depl0.app.runs.progress import Logged, make_reporter
from depl0.errors import InputError
from depl0.export.checked import write_checked
from depl0.export.targets import Request
from depl0.export.torch_files import Safetensors


def _enter_lock(folder: Path) -> None:
    with locked(folder):
        pass


def _export(folder: Path) -> None:
    write_checked(Safetensors(), Request(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)), folder / "x.safetensors")


WRITERS: dict[str, tuple[tuple[str, ...], Callable[[Path], object]]] = {
    "a whole file": (("x", "x.part"), lambda folder: io.atomic_write(folder / "x", b"new")),
    "lock": ((HOLDER, f"{HOLDER}.part"), _enter_lock),
    "summary": (("summary.json", "summary.json.part"), lambda folder: RunFolder(folder).finish({"a": 1})),
    "figures": (("a.png", "a.svg"), lambda folder: write(Figure(), folder, "a")),
    "pointer": (("newest", "newest.part"), lambda folder: save_checkpoint(folder, 1, {"a": 1}, keep=1)),
    "export": (("x.safetensors", ".x.part.safetensors"), _export),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_links_are_replaced_and_what_they_lead_to_is_not_touched(kind: str, tmp_path: Path) -> None:
    names, act = WRITERS[kind]
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    folder.mkdir()
    for name in names:
        victim.write_text("mine")
        (folder / name).symlink_to(victim)
    act(folder)
    assert victim.read_text() == "mine"
    assert not [path for path in folder.glob("*.part*") if path.name not in names], "a temporary file is left"


@pytest.mark.parametrize(
    "add", [lambda p: Lines(p).add({"a": 1}), lambda p: Logged(make_reporter(quiet=True), p).note("a")]
)
def test_nothing_is_appended_through_a_link(add: Callable[[Path], None], tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "log.txt"
    victim.write_text("mine")
    link.symlink_to(victim)
    with pytest.raises(InputError, match="is a link; nothing is written through it"):
        add(link)
    assert victim.read_text() == "mine"


def test_the_file_that_is_locked_is_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(InputError, match="cannot be written to"):
        _enter_lock(tmp_path)
    assert victim.read_text() == "mine"


def test_new_files_have_the_rights_that_the_user_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        io.atomic_write(tmp_path / "x", b"")
        io.append(tmp_path / "y", b"")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "xy"] == [0o640, 0o640]


def test_a_save_that_fails_at_its_second_file_leaves_the_network_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))

    write, written = io.write_flushed, []

    def full(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError("full")
        write(path, data)

    depl0.save(depl0.attach(network(), torch.zeros(1, 3)).extract(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(io, "write_flushed", full)
    with pytest.raises(OSError, match="full"):
        depl0.save(depl0.attach(network(), torch.zeros(1, 3)).extract(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
