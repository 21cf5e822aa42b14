"""Several processes: one network, one voice, one set of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from depl0.app.cli.app import main
from depl0.app.runtime.processes import make_accelerator
from depl0.errors import TrainingError
from tests.networks.tiny import Noisy, interrupt, run, tiny_recipe
from tests.support.forkserver import ForkServer, ranks
from tests.support.ranks import run as run_rank

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]

ROOT = Path(__file__).parents[2]


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in two processes, as torchrun starts them."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    any_port = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return subprocess.run(
        [*launcher, *any_port, "tests/support/worker.py", str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *map(str, sys.path)])},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_no_communication_outlives_a_run(server: ForkServer, tmp_path: Path) -> None:
    fields = {"search__epochs": 1, "finetune__epochs": 0}
    codes, said = ranks(server, tmp_path, "tests.runtime.test_processes:run_and_look", fields=fields)
    assert codes == [0, 0], said


def run_and_look(rank: int, folder: Path, fields: dict[str, Any]) -> int:
    """Return the exit code of a run, unless one of gloo's threads is still there when the command returns."""
    code = run_rank(rank, folder, fields)
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in names), names
    assert not torch.distributed.is_initialized()
    return code


def test_two_processes_go_on_with_the_run_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_recipe(run__trackers=["tensorboard"], finetune__gated=True, search__epochs=6)
    out = tmp_path / "run"
    with pytest.raises(TrainingError):
        run(recipe, out, Noisy(at_step=2, act=interrupt))  # in the warm-up
    done = torchrun(tmp_path, "prune", str(out / "recipe.toml"), "--out", str(out), "--resume", "--json")
    assert done.returncode == 0, done.stderr

    summary = json.loads(done.stdout)  # one result
    assert done.stderr.count("resumed from step 2") == 1
    assert done.stderr.count("it continues, but not bit for bit") == 1
    assert done.stderr.count("finetune 2/2") == 1
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["epoch"]) for line in lines if "event" not in line] == [
        *(("search", epoch) for epoch in range(1, 7)), ("finetune", 1), ("finetune", 2),
    ]  # fmt: skip
    compactions = [line for line in lines if line.get("event") == "compaction"]
    assert compactions[0]["phase"] == "search"  # while both trained
    assert compactions[-1]["macs_share"] == pytest.approx(summary["macs_left"])  # all closed gates, before fine-tuning
    assert summary == json.loads((out / "summary.json").read_text())

    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["accuracy"] == summary["compact"]["accuracy"]
    assert main(["eval", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == first["accuracy"]


def test_two_processes_find_each_other_where_the_device_is_left_open(server: ForkServer, tmp_path: Path) -> None:
    fields = {"run__device": "auto", "search__epochs": 1, "finetune__epochs": 0}
    codes, said = ranks(server, tmp_path, "run", fields=fields)
    assert codes == [0, 0], said
    assert "2 processes" in said[0] and "Traceback" not in "".join(said)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 3


def test_processes_that_accelerate_does_not_see_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("depl0.app.runtime.processes.Accelerator", lambda **_: SimpleNamespace(num_processes=1))
    with pytest.raises(TrainingError, match="2 processes were started, but Accelerate runs 1"):
        make_accelerator(tiny_recipe())
