"""Several processes are one run: the same curve, the same structure, one voice, and no waiting for the dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from depl0.app.runtime.processes import waiting_time
from depl0.errors import InputError
from tests.networks.tiny import Noisy, run, tiny_recipe
from tests.support.forkserver import ForkServer, own_words, ranks

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]

FIELDS: dict[str, Any] = {
    "search__epochs": 4,
    "search__warmup": 0.5,
    "search__ramp": 0.5,
    "finetune__epochs": 2,
    "run__checkpoint_steps": 3,
    "weight_optimizer__lr": 0.1,
}


def at_step(step: int, how: int) -> dict[str, Any]:
    """A fault of the second rank."""
    return {"rank": 1, "step": step, "phase": "search", "how": how}


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["task_loss"] for line in lines if "event" not in line]


def test_the_curve_of_two_is_the_curve_of_one(server: ForkServer, tmp_path: Path) -> None:
    codes, said = ranks(server, tmp_path, "run", fields=FIELDS)
    assert codes == [0, 0], said
    run(tiny_recipe(**FIELDS), tmp_path / "one")
    one, two = losses(tmp_path / "one"), losses(tmp_path / "run")
    assert two == pytest.approx(one, abs=0.3)
    assert two[0] - two[-1] > 0.1  # there is a curve
    assert said[1] == ""  # one voice
    assert said[0].count("finetune 2/2") == 1


def test_a_rank_that_dies_ends_the_others_and_the_run_goes_on(server: ForkServer, tmp_path: Path) -> None:
    codes, said = ranks(server, tmp_path, "run", fault=at_step(8, signal.SIGKILL), fields=FIELDS)
    assert codes == [1, -9]
    assert "process 0 of 2 has lost another one, and stops" in said[0]
    assert "hint: re-run with --resume to continue." in said[0]  # what to do comes first, gloo's words last
    assert "--resume" in said[0] and "Traceback" not in said[0]
    reporter = Noisy()
    run(tiny_recipe(**FIELDS), tmp_path / "run", reporter, resume=True)  # with another number of processes
    assert "resumed from step 6" in reporter.notes
    assert any("had 2 processes and now has 1: it continues, but not bit for bit" in note for note in reporter.notes)
    assert len(losses(tmp_path / "run")) == 6


def test_two_processes_resume_to_the_same_metrics(server: ForkServer, tmp_path: Path) -> None:
    fields = {**FIELDS, "run__checkpoint_steps": 7, "data__batch_size": 4, "search__epochs": 2, "finetune__epochs": 0}
    assert ranks(server, tmp_path / "whole", "run", fields=fields)[0] == [0, 0]
    fault = at_step(9, signal.SIGKILL)  # the last checkpoint is one within an epoch
    assert ranks(server, tmp_path / "broken", "run", fault=fault, fields=fields)[0] == [1, -9]
    codes, said = ranks(server, tmp_path / "broken", "run", fields=fields, resume=True)
    assert codes == [0, 0], said

    def metrics(name: str) -> list[dict[str, Any]]:
        lines = (tmp_path / name / "run" / "metrics.jsonl").read_text().splitlines()
        return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]

    assert metrics("broken") == metrics("whole")


def test_a_signal_to_one_rank_stops_all_after_a_save(server: ForkServer, tmp_path: Path) -> None:
    fields = {**FIELDS, "search__epochs": 60, "run__checkpoint_steps": 1000}
    codes, said = ranks(server, tmp_path, "run", fault=at_step(4, signal.SIGTERM), fields=fields)
    assert codes == [75, 75]
    assert "interrupted at step" in said[0] and said[1] == ""
    step = int(said[0].partition("interrupted at step ")[2].partition(";")[0])
    assert list((tmp_path / "run" / "checkpoints").glob(f"step-{step:09d}-*"))


def test_ranks_that_disagree_on_the_structure_stop(server: ForkServer, tmp_path: Path) -> None:
    codes, said = ranks(server, tmp_path, "disagree", fields={**FIELDS, "search__epochs": 2})
    assert codes == [1, 1]
    assert "the processes do not agree on which gates are open: process 1" in said[0]
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("text", ["soon", "nan"])
def test_a_waiting_time_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEPL0_TIMEOUT", text)
    with pytest.raises(InputError, match="DEPL0_TIMEOUT must be a number of seconds"):
        waiting_time()


def test_processes_that_do_not_find_each_other_say_so(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    numbers = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-m", "depl0", "prune", "digits", "--out", str(tmp_path / "run"), "--device", "cpu"],
        env={**os.environ, **numbers, "MASTER_ADDR": "127.0.0.1", "DEPL0_TIMEOUT": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = own_words(done.stderr)
    assert done.returncode == 1, said
    assert "error: the 2 processes have not found each other within 1 s." in said and "DEPL0_TIMEOUT" in said
    assert "Traceback" not in said
