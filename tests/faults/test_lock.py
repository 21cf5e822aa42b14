"""Two processes on one run folder: the second is refused, unless the first is dead."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
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


def test_the_lock_ends_with_its_process_even_if_a_child_lives_on(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # the child lives for as long as this process keeps the end that writes
    child = f"os.fork() or (sys.stdout.close(), os.read({reading}, 1), os._exit(0))"
    with elsewhere(tmp_path, child, pass_fds=(reading,)) as holder:
        holder.kill()
        holder.wait()
        deadline = time.monotonic() + 300  # a child that has only just begun still has to let go
        while True:
            try:
                with locked(tmp_path):
                    assert content(tmp_path)["pid"] == os.getpid()
                break
            except InputError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        os.close(writing)
    os.close(reading)


OLD = {"pid": os.getpid(), "host": socket.gethostname(), "began": "", "since": "2026-01-01 00:00:00 +0000"}


LEFT = {
    "empty": "",
    "cut short": '{"pid": 1',
    "list": "[]",
    "fields missing": '{"pid": -1}',
    "zeros": "\x00" * 50,
    "this process": json.dumps(OLD),
    "another host": json.dumps({**OLD, "host": "node17"}),
    "another process": json.dumps({**OLD, "pid": 1}),
    "no process": json.dumps({**OLD, "pid": 2**80}),
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_a_file_that_was_left_behind_keeps_nobody_out(tmp_path: Path, left: str) -> None:
    """By a loss of power, or by an earlier version, whose lock it was."""
    (tmp_path / HOLDER).write_text(left)
    with locked(tmp_path):
        assert content(tmp_path)["pid"] == os.getpid()


def test_who_cannot_be_read_is_still_refused(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / HOLDER).write_text("")
        with pytest.raises(InputError, match=r"another run works in .*: it has only just begun"), locked(tmp_path):
            pass


def test_a_run_on_another_host_is_named_and_the_hint_says_what_to_do(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / HOLDER).write_text(json.dumps({**OLD, "host": "node17"}))
        with pytest.raises(InputError, match=r"process \d+ on node17") as caught, locked(tmp_path):
            pass
    assert f"delete {tmp_path / LOCK}" in str(caught.value)


def test_only_one_of_many_enters(tmp_path: Path) -> None:
    (tmp_path / HOLDER).write_text(json.dumps({**OLD, "pid": 2**30}))
    inside, most, refused = 0, 0, 0
    guard, go, others = threading.Lock(), threading.Barrier(8), threading.Semaphore(0)

    def contend() -> None:
        nonlocal inside, most, refused
        go.wait()
        try:
            with locked(tmp_path):
                with guard:
                    inside += 1
                    most = max(most, inside)
                for _ in range(7):
                    others.acquire(timeout=60)
                with guard:
                    inside -= 1
        except InputError:
            with guard:
                refused += 1
            others.release()

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


def test_a_full_folder_is_said_and_not_left_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("depl0.app.runs.lock.atomic_write", full)
    with pytest.raises(InputError, match="cannot be written to: No space left on device"), locked(tmp_path):
        pass
    monkeypatch.undo()
    with locked(tmp_path):
        pass


def test_the_command_says_so_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, recipe = tmp_path / "run", tmp_path / "r.toml"
    recipe.write_text(write_recipe(tiny_recipe()))
    with elsewhere(out) as holder:
        assert main(["prune", str(recipe), "--out", str(out)]) == 2
        said = capsys.readouterr().err
    assert f"error: another run works in {out}: process {holder.pid} on {socket.gethostname()}, since 20" in said
    assert "hint: wait for it, stop it, or choose another --out." in said and "Traceback" not in said
    assert not (out / "recipe.toml").exists()
