"""Two processes on one run folder: the second is refused, unless the first is dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from depl0.errors import InputError
from depl0.runs.lock import LOCK, locked
from tests.faults.forkserver import ForkServer
from tests.training.tiny import Noisy, run, tiny_recipe


def content(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / LOCK).read_text()))


def change(folder: Path, **fields: Any) -> None:
    """Let a lock stay behind that says something else."""
    with locked(folder):
        left = {**content(folder), **fields}
    (folder / LOCK).write_text(json.dumps(left))


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
    assert not (out / LOCK).exists()


def test_the_lock_of_a_killed_run_does_not_hold(server: ForkServer, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    task = {"task": "prune", "out": str(out), "fields": {"search__epochs": 300}, "options": []}
    pid = server.start(log, **task, resume=False)
    deadline = time.monotonic() + 90
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


def test_a_number_that_another_process_has_now_does_not_hold(tmp_path: Path) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("only Linux tells when a process began")
    change(tmp_path, began="another time")
    with locked(tmp_path):
        assert content(tmp_path)["began"] != "another time"


@pytest.mark.parametrize("left", ["", '{"pid": 1', "[]", '{"pid": -1}', "\x00" * 50])
def test_a_lock_cut_short_by_a_loss_of_power_does_not_hold(tmp_path: Path, left: str) -> None:
    (tmp_path / LOCK).write_text(left)
    with locked(tmp_path):
        assert content(tmp_path)["pid"] == os.getpid()


@pytest.mark.parametrize("pid", [0, -1, 2**80])
def test_impossible_processes_do_not_hold(tmp_path: Path, pid: int) -> None:
    change(tmp_path, pid=pid)
    with locked(tmp_path):
        pass


def test_a_lock_of_another_host_holds_and_the_hint_says_what_to_do(tmp_path: Path) -> None:
    change(tmp_path, host="node17", pid=2**30)
    with pytest.raises(InputError, match=r"process \d+ on node17") as caught, locked(tmp_path):
        pass
    assert f"delete {tmp_path / LOCK}" in str(caught.value)


def test_only_one_of_many_takes_over_a_stale_lock(tmp_path: Path) -> None:
    change(tmp_path, pid=2**30)
    inside, most, refused = 0, 0, 0
    guard, go = threading.Lock(), threading.Barrier(8)

    def contend() -> None:
        nonlocal inside, most, refused
        go.wait()
        try:
            with locked(tmp_path):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.2)
                with guard:
                    inside -= 1
        except InputError:
            with guard:
                refused += 1

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, refused) == (1, 7)


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the run folder /proc/depl0-run cannot be written to") as caught:
        run(tiny_recipe(search__epochs=1), Path("/proc/depl0-run"))
    assert "choose another --out" in str(caught.value)


def test_the_command_says_so_without_a_traceback(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=-1)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        change(out, pid=holder.pid, began="")
        from depl0.cli.app import main

        recipe = tmp_path / "r.toml"
        from depl0.recipes.toml import write_recipe

        recipe.write_text(write_recipe(tiny_recipe()))
        assert main(["prune", str(recipe), "--out", str(out)]) == 2
    finally:
        holder.kill()
        holder.wait()
