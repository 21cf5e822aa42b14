"""Two processes on one run folder: the second is refused, unless the first is dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.lock import HOLDER, LOCK, locked
from depl0.errors import InputError
from tests.networks.tiny import Noisy, run, tiny_recipe
from tests.support.forkserver import ForkServer

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]


def content(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / HOLDER).read_text()))


@contextmanager
def elsewhere(folder: Path, program: str = "", **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the lock until it is told to end."""
    source = (
        "import sys, os, time; from pathlib import Path; from depl0.app.runs.lock import locked\n"
        f"with locked(Path({str(folder)!r})):\n    {program or 'pass'}\n    print('locked', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True, **options)
    try:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.communicate("\n")


def test_a_second_run_is_refused_and_the_first_is_not_disturbed(tmp_path: Path) -> None:
    recipe, out, refusals = tiny_recipe(search__epochs=1, finetune__epochs=0), tmp_path / "run", []

    def second() -> None:
        for resume in (False, True):
            with pytest.raises(InputError) as caught:
                run(recipe, out, resume=resume)
            refusals.append(str(caught.value))

    run(recipe, out, Noisy(at_step=2, act=second))
    assert "holds another run already" in refusals[0]
    assert f"another run works in {out}: process {os.getpid()} on {socket.gethostname()}, since" in refusals[1]
    assert not (out / HOLDER).exists()
    with locked(out):
        pass


def test_the_lock_of_a_killed_run_does_not_hold(server: ForkServer, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    task = {"task": "prune", "out": str(out), "fields": {"search__epochs": 100_000}}
    pid = server.start(log, **task, resume=False)
    deadline = time.monotonic() + 300
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    assert content(out)["pid"] == pid
    with pytest.raises(InputError, match=f"another run works in .*: process {pid} on"), locked(out):
        pass
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with locked(out):  # although nobody has taken note of its end yet
        assert content(out)["pid"] == os.getpid()
    assert server.wait() == -signal.SIGKILL


OLD = {"pid": os.getpid(), "host": socket.gethostname(), "began": "", "since": "2026-01-01 00:00:00 +0000"}


def test_a_run_on_another_host_is_named_and_the_hint_says_what_to_do(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / HOLDER).write_text(json.dumps({**OLD, "host": "node17"}))
        with pytest.raises(InputError, match=r"process \d+ on node17") as caught, locked(tmp_path):
            pass
    assert f"delete {tmp_path / LOCK}" in str(caught.value)


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the run folder /proc/depl0-run cannot be written to") as caught:
        run(tiny_recipe(search__epochs=1), Path("/proc/depl0-run"))
    assert "choose another --out" in str(caught.value)


def test_the_command_says_so_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, recipe = tmp_path / "run", tmp_path / "r.toml"
    recipe.write_text(write_recipe(tiny_recipe()))
    with elsewhere(out) as holder:
        assert main(["prune", str(recipe), "--out", str(out)]) == 2
        said = capsys.readouterr().err
    assert f"error: another run works in {out}: process {holder.pid} on {socket.gethostname()}, since 20" in said
    assert "hint: wait for it, stop it, or choose another --out." in said and "Traceback" not in said
    assert not (out / "recipe.toml").exists()
