"""Help, versions, completion and wrong flags answer at once: nothing slow is imported for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from depl0.app.cli import networks, prune
from depl0.app.recipes import SECTIONS
from depl0.gates.threshold import BudgetKind
from depl0.latency import BACKENDS
from depl0.search.recovery.self_distillation import STEPS
from tests.cli.conftest import Type

pytestmark = pytest.mark.usefixtures("remembered_plans")

SLOW = {"torch", "matplotlib", "accelerate", "numpy", "transformers"}
MOST_MODULES = 400
"""288 take 0.13 s on one core; torch alone has a thousand"""
PROGRAM = """
import sys
from depl0.__main__ import main
code = main()
print([name for name in {slow!r} if name in sys.modules], len(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--help", 0, "prune "),
        ("prune --help", 0, "--budget FLOAT"),
        ("prune --nonsense", 2, "--nonsense"),
        ("prune digits --of second", 2, "--of must be one of macs, params, latency, got 'second' instead."),
    ],
)
def test_an_answer_needs_no_slow_import(tmp_path: Path, words: str, code: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(slow=sorted(SLOW)), *words.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert text in (done.stderr if code else done.stdout)
    slow, _, modules = done.stderr.splitlines()[-1].rpartition(" ")
    assert slow == "[]" and int(modules) < MOST_MODULES


def test_prune_lists_its_options_in_groups(type_command: Type) -> None:
    shown = type_command("prune --help").out
    titles = [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Arguments", "Network and data", "Budget", "Training", "Run"]
    places = [shown.index(word) for word in ("Network and data:", "--data TEXT", "Budget:", "--budget FLOAT")]
    assert places == sorted(places)
    assert "--of [macs|params|latency]" in shown and "<" not in shown


def test_recipes_lists_every_field(type_command: Type) -> None:
    fields = json.loads(type_command("recipes fields --json").out)
    assert {field["name"] for field in fields} == {
        f"{title}.{name}" for title, kind in SECTIONS.items() for name in kind.model_fields
    }
    assert all(field["description"] for field in fields)
    only = type_command("recipes fields penalty").out
    assert "penalty.kind (default: params)" in only
    assert "search.epochs" not in only


def test_the_words_of_the_options_are_those_of_the_library() -> None:
    assert get_args(BudgetKind) == prune.BUDGETS
    assert tuple(BACKENDS) == networks.BACKENDS
    assert prune.QUICK["finetune.recover"] == STEPS


def test_completion(type_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DEPL0_COMPLETE", "complete_bash")
    for typed, offered in (("depl0 pru", ["prune"]), ("depl0 prune --of ", ["macs", "params", "latency"])):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        assert type_command("").out.split() == offered
