"""The number of threads follows the size of a step, unless the user chose it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from depl0.app.runtime.execution import EXPLICIT, threads_by_work

SMALL, LARGE = 1e6, 1e12


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXPLICIT:
        monkeypatch.delenv(name, raising=False)
    numbers = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: numbers[-1])
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)


def test_small_steps_run_on_one_thread_and_large_ones_on_all() -> None:
    with threads_by_work() as choose:
        choose(SMALL)
        assert torch.get_num_threads() == 1
        choose(LARGE)
        assert torch.get_num_threads() == 4
        choose(SMALL)
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("variable", EXPLICIT)
def test_the_user_s_environment_wins(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "4")
    with threads_by_work() as choose:
        choose(SMALL)
        assert torch.get_num_threads() == 4


def test_the_user_s_code_wins() -> None:
    with threads_by_work() as choose:
        torch.set_num_threads(3)
        choose(SMALL)
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 3


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread")
def test_a_command_trains_a_small_network_on_one_thread(tmp_path: Path) -> None:
    words = "prune digits --epochs 1 --finetune-epochs 0 --set data.limit_train=64 --set search.dense_baseline=false"
    variables = {name: value for name, value in os.environ.items() if name not in EXPLICIT}
    done = subprocess.run(
        [sys.executable, "-m", "depl0", *words.split(), "--out", "run", "--device", "cpu"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    assert "cpu, fp32, 1 thread\n" in done.stderr
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["machine"]["threads"] == 1
