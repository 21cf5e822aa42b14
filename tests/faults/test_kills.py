"""Runs that are killed, at any moment and in the middle of any save, and go on as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from depl0.app.cli.app import STOPPED
from depl0.app.runs.checkpoint import save_checkpoint
from depl0.errors import FormatError
from tests.networks.tiny import Noisy, PowerCut, cut_power, run, tiny_recipe
from tests.support import tasks
from tests.support.faults import CHANGES
from tests.support.forkserver import ForkServer
from tests.support.hostile_values import CASES
from tests.support.resume import what_matters

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]

# -- within one save -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "keep"),
    [([5], 1), ([1, 2, 5], 2)],
    ids=["first", "two"],
)
def test_a_save_may_die_between_any_two_operations(
    server: ForkServer, tmp_path: Path, steps: list[int], keep: int
) -> None:
    newest, operation, outcomes = len(steps) - 1, 0, []
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        task = {"task": "save", "folder": str(folder), "steps": steps, "keep": keep}
        fault = {"rank": 0, "step": operation, "phase": "write", "below": str(folder)}
        code = server.run(tmp_path / "log", **task, fault=fault)
        outcomes.append(tasks.number_of(folder))
        assert outcomes[-1] in ((newest, newest - 1) if newest else (0, None))
        save_checkpoint(folder, 9, tasks.state(9), keep)  # and what is left does not stand in the way
        assert tasks.number_of(folder) == 9
        assert sum(path.name.startswith("step-") for path in folder.iterdir()) <= keep
        assert not list(folder.glob(".*"))
        if code == 0:
            break
        assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert operation > 6, CHANGES  # mkdir, a file of four operations, rename …
    assert outcomes[0] == (newest - 1 if newest else None)
    assert outcomes == sorted(outcomes, key=lambda found: -1 if found is None else found)


def test_checkpoints_none_of_which_is_whole_are_an_error(tmp_path: Path) -> None:
    recipe, out = tiny_recipe(run__checkpoint_minutes=0), tmp_path / "run"
    with pytest.raises(PowerCut):
        run(recipe, out, Noisy(at_step=8, act=cut_power))
    for values in (out / "checkpoints").iterdir():
        os.truncate(values, values.stat().st_size // 2)
    before = sorted(str(path) for path in out.rglob("*"))
    with pytest.raises(FormatError, match=r"all in .* are corrupt: step-000000006-.*, step-000000003-") as caught:
        run(recipe, out, resume=True)
    assert "another --out" in str(caught.value)
    assert sorted(str(path) for path in out.rglob("*")) == before  # nothing was begun anew


# -- within a whole run ----------------------------------------------------------------------------------------------

FIELDS: dict[str, dict[str, Any]] = {
    "budget": {"run__checkpoint_steps": 2, "run__keep_checkpoints": 99, "search__epochs": 2, "finetune__epochs": 1},
    "penalty": {
        "run__checkpoint_steps": 1,
        "run__keep_checkpoints": 99,
        "search__epochs": 2,
        "finetune__epochs": 1,
        "finetune__gated": True,
        "penalty__weight": 1e-3,
    },
}


def weights_in(path: Path) -> dict[str, bytes]:
    """The tensors of a checkpoint, without the tree of other values, among which are times."""
    tensors = load_file(path)
    return {name: value.numpy().tobytes() for name, value in tensors.items() if name != "tree"}


def assert_same_run(left: Path, right: Path) -> None:
    """Weights, log α, optimizers and random states at every step, metrics, summary and compact network."""
    assert what_matters(left) == what_matters(right)
    assert (left / "compact/compact.json").read_bytes() == (right / "compact/compact.json").read_bytes()
    states = [
        {path.name[:14]: weights_in(path) for path in sorted((run / "checkpoints").iterdir())} for run in (left, right)
    ]
    assert len(states[1]) >= 4
    assert {name: states[0].get(name) for name in states[1]} == states[1]  # a stop saves others besides


@pytest.fixture(scope="module")
def whole(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """Every recipe without a stop: its folder, and the number of its file operations."""
    runs = {}
    for name, fields in FIELDS.items():
        folder = tmp_path_factory.mktemp("whole")
        log = folder / "log"
        task = {"task": "prune", "out": str(folder / "run"), "fields": fields}
        assert server.run(log, **task, count=True) == 0, log.read_text()
        runs[name] = folder / "run", int((folder / "run.count").read_text())
    return runs


EACH = 5
"""faults in each of the tests below"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
PHASES = ["opening", "analysing", "freezing", "extracting", "finalising"]


def some_fault(rng: random.Random, operations: int, out: Path) -> dict[str, Any]:
    """Draw a fault: at a step or a phase of a run, or, just as often, at one of its file operations."""
    if rng.random() < 0.5:
        return {"rank": 0, "step": rng.randint(1, operations), "phase": "write", "below": str(out)}
    phase = rng.choice(["search"] * 5 + ["finetune"] * 3 + PHASES)
    step = rng.randint(1, {"search": 6, "finetune": 3}.get(phase, 1))
    return {"rank": 0, "step": step, "phase": phase, "how": rng.choice(SIGNALS)}


@pytest.mark.parametrize("seed", range(3 if CASES < 1 else 200 // EACH))
def test_runs_that_are_killed_or_stopped_anywhere_end_the_same(
    server: ForkServer, whole: dict[str, tuple[Path, int]], tmp_path: Path, seed: int
) -> None:
    """``make fuzz`` injects 200 faults. A run that none has met is finished, and another one begins."""
    rng, log, injected, number = random.Random(seed), tmp_path / "log", 0, 0
    name = list(FIELDS)[seed % len(FIELDS)]
    reference, operations = whole[name]
    while True:
        out = tmp_path / str(number)
        fault = some_fault(rng, operations, out) if injected < EACH else None
        task = {"task": "prune", "out": str(out), "fields": FIELDS[name], "resume": out.exists()}
        code = server.run(log, **task, fault=fault)
        if code == 0:
            assert_same_run(out, reference)
            number += 1
            if fault is None:
                break
        else:
            assert fault is not None, log.read_text()
            wanted = -signal.SIGKILL if fault.get("how", signal.SIGKILL) == signal.SIGKILL else STOPPED
            assert code == wanted, (fault, log.read_text())
            injected += 1
    assert "Traceback" not in log.read_text()
