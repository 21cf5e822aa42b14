"""Processes of a finished run end with exit code 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

TIMES = 20 if os.environ.get("DEPL0_ALL") else 1
TINY = ["--epochs", "1", "--finetune-epochs", "0", "--set", "data.limit_train=128", "--set", "data.limit_test=64"]


def test_torchrun_ends_without_an_abort(tmp_path: Path) -> None:
    """A communication thread that outlives its interpreter would abort the process (SIGABRT), now and then."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    paths = os.pathsep.join(map(str, sys.path))
    for number in range(TIMES):
        command = ["-m", "depl0", "prune", "digits", *TINY, "--out", str(tmp_path / str(number))]
        done = subprocess.run(
            [*launcher, "--rdzv-endpoint", "localhost:0", *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        assert "active exception" not in done.stderr
        assert (tmp_path / str(number) / "compact").is_dir()
