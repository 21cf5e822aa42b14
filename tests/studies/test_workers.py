"""Members of a study on workers: the table of the sequential study, whatever is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from depl0.app.recipes.toml import with_overrides
from depl0.app.runs.progress import Reporter
from depl0.app.studies.study import Outcome, Study
from depl0.app.studies.workers import Resources, find_workers
from depl0.errors import InputError, TrainingError
from tests.networks.tiny import tiny_recipe

pytestmark = [pytest.mark.processes, pytest.mark.slow]

RECIPE = tiny_recipe()
MEMBERS = {"a/seed-0": RECIPE, "a/seed-1": with_overrides(RECIPE, {"run.seed": 1})}
ONE = {"a/seed-0": RECIPE}
BROKEN = {"a/seed-1": MEMBERS["a/seed-1"], "broken": tiny_recipe(model__spec="tests.networks.tiny:ScoresThatExplode")}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes import the networks of the tests."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(root)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return Study(MEMBERS, tmp_path_factory.mktemp("sequential") / "study").run(Reporter(), lambda found: None)


def figures(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return what a table shows of each member, but for its time."""
    found = {each.name: each.summary for each in outcomes if each.summary is not None}
    return {name: [told["compact"]["accuracy"], told["macs_left"], told["groups"]] for name, told in found.items()}


@pytest.mark.parametrize("on", ["local:2", "ray", "slurm-local"])
def test_an_engine_gives_what_the_sequential_study_gives(tmp_path: Path, on: str, sequential: list[Outcome]) -> None:
    seen: list[list[Outcome]] = []
    outcomes = Study(BROKEN, tmp_path / "study").run(Reporter(), seen.append, find_workers(on, Resources(cpus=1)))
    assert figures(outcomes) == figures(sequential[1:])
    broken = outcomes[-1]
    assert "the loss became" in str(broken.failure)
    assert len(seen[-1]) == 2


def driver(folder: Path) -> subprocess.Popen[bytes]:
    """Start a study as a user would, in a process that may be killed."""
    code = (
        "import sys; from pathlib import Path; from tests.studies.test_workers import *\n"
        "from depl0.app.signals import stop_on_signals\n"
        "with stop_on_signals():\n"
        "    study = Study(ONE, Path(sys.argv[1]))\n"
        "    study.run(Reporter(), lambda found: None, find_workers('local:1', Resources()))"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stderr=subprocess.DEVNULL)


def wait_for(what: Callable[[], Any]) -> Any:
    for _ in range(30_000):
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def member_process(folder: Path) -> int | None:
    """Return the process that works on the first member, once it has begun to train."""
    if not (folder / "a" / "seed-0" / "metrics.jsonl").exists():
        return None
    command = ["-m", "depl0.app.studies.member", str(folder), "a/seed-0", ""]
    for found in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process that has ended
            if found.read_text(errors="replace").split("\0")[1:] == command:
                return int(found.parent.name)
    return None


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="ends with its parent by a service of Linux")
@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_nothing_is_lost_when_it_is_killed(tmp_path: Path, victim: str, sequential: list[Outcome]) -> None:
    folder = tmp_path / "study"
    process = driver(folder)
    pid = wait_for(lambda: member_process(folder))
    os.kill(pid if victim == "worker" else process.pid, signal.SIGKILL)
    if victim == "worker":
        assert process.wait(300) == 0  # started again, and goes on
    else:
        process.wait()
        wait_for(lambda: not is_alive(pid))
    outcomes = Study(ONE, folder).run(Reporter(), lambda found: None, find_workers("local:2", Resources()))
    assert figures(outcomes) == figures(sequential[:1])


@pytest.mark.parametrize("on", ["local:x", "cloud"])
def test_wrong_engines_are_refused(on: str) -> None:
    with pytest.raises(InputError, match=r"--on local takes|The workers must be one of"):
        find_workers(on, Resources())


def test_ray_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match=r"waiting for the Ray cluster at nowhere failed: ") as caught:
        find_workers("ray:nowhere", Resources())
    assert "waiting for the Ray cluster at nowhere …" in capsys.readouterr().err
    assert "--on local:N" in str(caught.value)
