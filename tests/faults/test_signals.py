"""Signals: every phase of a run ends with code 75, in words that are true, and goes on from where it was."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depl0._util.progress import stop_requested
from depl0.app.cli.app import STOPPED
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import has_checkpoints, load_newest
from depl0.app.signals import stop_on_signals
from depl0.errors import DivergedError, RunInterruptedError, TrainingError
from tests.networks.tiny import Noisy, run, tiny_recipe
from tests.support.forkserver import ForkServer

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]

SCORED = {"gates__method": "l1-norm", "gates__generator": "independent"}


@pytest.mark.parametrize(
    ("phase", "step", "how", "fields"),
    [
        ("opening", 1, signal.SIGHUP, {}),
        ("scoring", 1, signal.SIGTERM, {**SCORED, "search__epochs": 0}),
        ("search", 2, signal.SIGINT, {}),
        ("freezing", 1, signal.SIGTERM, {}),
        ("finetune", 2, signal.SIGTERM, {}),
        ("finalising", 1, signal.SIGUSR1, {}),
    ],
)
def test_every_phase_ends_with_the_code_of_a_stop(
    server: ForkServer, tmp_path: Path, phase: str, step: int, how: int, fields: dict[str, Any]
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    fields = {"search__epochs": 2, "finetune__epochs": 1, **fields}
    fault = {"rank": 0, "step": step, "phase": phase, "how": how}
    assert server.run(log, task="prune", out=str(out), fields=fields, fault=fault) == STOPPED == 75, log.read_text()
    said = log.read_text()
    assert "Traceback" not in said and "--resume" in said and "error: interrupted" in said
    assert f"{signal.Signals(how).name}: stopping" in said
    if phase in ("search", "extracting", "finetune"):  # after the present step, or the first one of what follows
        found = load_newest(out / "checkpoints")
        assert found is not None and f"interrupted at step {found[0]}; everything is saved in {out}" in said
        assert found[0] == step + (0 if phase == "search" else 6)
    elif has_checkpoints(out / "checkpoints"):
        assert f"interrupted; {out} has the last checkpoint." in said
    else:
        assert phase in ("opening", "analysing", "scoring")
        assert "interrupted before the first checkpoint." in said


@pytest.mark.parametrize("compensate", [False, True])
def test_scoring_and_fitting_stop_at_the_next_layer(tmp_path: Path, compensate: bool) -> None:
    """Either may take minutes, so neither is finished first."""
    fields = {"gates__method": "reconstruction", "search__epochs": 0, "search__compensate": compensate}
    reporter = Noisy(at_step=1, act=lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(RunInterruptedError, match="interrupted before the first checkpoint"):
        run(tiny_recipe(**fields), tmp_path / "run", reporter)
    assert reporter.steps == 1 and reporter.phases == ["scoring and fitting" if compensate else "scoring"]


def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    """The shell sends SIGHUP, and nothing can be said any more: writing to a closed terminal is an error."""
    (tmp_path / "r.toml").write_text(write_recipe(tiny_recipe(search__epochs=100_000, finetune__epochs=0)))
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "depl0", "prune", "r.toml", "--out", "run"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=there,
        stdout=there,
        stderr=there,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(there)
    os.set_blocking(here, False)
    seen = b""

    def epochs_are_done() -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(here, 1 << 16)
        return b"search" in seen and (tmp_path / "run/metrics.jsonl").stat().st_size > 0

    wait_until(epochs_are_done, lambda: f"{process.poll()} {seen!r}")
    os.close(here)
    assert process.wait(timeout=300) == STOPPED
    assert has_checkpoints(tmp_path / "run" / "checkpoints")


def wait_until(happened: Callable[[], bool], story: Callable[[], str]) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            if happened():
                return
        except FileNotFoundError:
            pass
        assert time.monotonic() < deadline, story()
        time.sleep(0.05)


# -- what is not there is not promised --------------------------------------------------------------------------------


def test_no_checkpoint_is_promised_where_there_is_none(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    for name, recipe in {"none": tiny_recipe(), "some": tiny_recipe(run__checkpoint_steps=1)}.items():
        with pytest.raises(TrainingError, match="cannot be written to") as caught:
            run(recipe, tmp_path / name, Noisy(at_step=2, act=full))
        assert ("The last checkpoint in it is intact." in str(caught.value)) == (name == "some")
    for name, steps in {"none at all": None, "a good one": 1}.items():
        recipe = tiny_recipe(
            model__spec="tests.networks.tiny:ScoresThatExplode", run__checkpoint_steps=steps, search__epochs=3
        )
        with pytest.raises(DivergedError) as caught:
            run(recipe, tmp_path / name)
        assert "lower the learning rates" in str(caught.value)
        assert has_checkpoints(tmp_path / name / "checkpoints") == (steps == 1)


# -- workers and nohup -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "end"), [(signal.SIGINT, 0), (signal.SIGUSR1, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_worker_leaves_it_to_its_parent(how: int, end: int) -> None:
    """A signal to the whole group must not take the workers away from a step that is to be finished."""
    with stop_on_signals():
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), how)
            os._exit(int(stop_requested()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == end
        assert not stop_requested()
