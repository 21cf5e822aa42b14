"""Two processes on one run folder: the second is refused, unless the first is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.folder import locked
from depl0.errors import InputError
from tests.networks.tiny import Noisy, run, tiny_recipe

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("remembered_plans")]


def test_a_second_run_is_refused_and_the_first_is_not_disturbed(tmp_path: Path) -> None:
    recipe, out, refusals = tiny_recipe(search__epochs=1, finetune__epochs=0), tmp_path / "run", []

    def second() -> None:
        for resume in (False, True):
            with pytest.raises(InputError) as caught:
                run(recipe, out, resume=resume)
            refusals.append(str(caught.value))

    run(recipe, out, Noisy(at_step=2, act=second))
    assert "holds another run already" in refusals[0]
    assert f"another run works in {out}.\nhint: wait for it, stop it" in refusals[1]
    with locked(out):
        pass


def test_the_lock_of_a_killed_process_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, recipe = tmp_path / "run", tmp_path / "r.toml"
    recipe.write_text(write_recipe(tiny_recipe()))
    source = (
        "import sys; from pathlib import Path; from depl0.app.runs.folder import locked\n"
        f"with locked(Path({str(out)!r})):\n    print('locked', flush=True)\n    sys.stdin.readline()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    assert main(["prune", str(recipe), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"error: another run works in {out}." in said and "Traceback" not in said
    assert not (out / "recipe.toml").exists()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with locked(out):
        pass


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the run folder /proc/depl0-run cannot be written to") as caught:
        run(tiny_recipe(search__epochs=1), Path("/proc/depl0-run"))
    assert "choose another --out" in str(caught.value)
