"""What the terminal shows a newcomer: help, hints, limits and the last line of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from depl0.app.cli.result import closing_line
from tests.cli.conftest import Type

MAKE = f"{Path(__file__).parents[1] / 'networks' / 'golden.py'}:TinyDigits"
FOLDER = Path(__file__).parents[1] / "golden" / "v1" / "blocks"


def test_help_shows_whole_summaries_and_examples(type_command: Type) -> None:
    shown = type_command("--help").out
    own = [
        line for line in shown.splitlines() if re.match(r"  [a-z]+  +[A-Z]", line) and not line.startswith("  paper")
    ]
    assert len(own) >= 9 and not [line for line in own if line.endswith("...")]
    assert shown.count("\n    depl0 ") == 3 or shown.count("\n  depl0 ") == 3
    assert "https://" in shown
    assert type_command("help").out == shown
    assert type_command("help plan").out == type_command("plan --help").out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("plan resnet18", "hint: did you mean torchvision:resnet18?"),
        ("prune --model resnet20", "hint: pass --data "),
        ("prune model.pt", "hint: depl0 prune --model MODEL --weights model.pt --data DATA."),
    ],
)
def test_hints(words: str, hint: str, type_command: Type) -> None:
    typed = type_command(words)
    assert typed.code == 2 and hint in typed.err


def test_doctor_lists_versions_and_missing_packages(type_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    from depl0.app.cli import about

    monkeypatch.setattr(about, "EXTRAS", {"export": ("onnx", "no-such-package")})
    typed = type_command("doctor")
    assert typed.code == 0 and re.search(r"^torch +2\.", typed.out, re.MULTILINE)
    assert re.search(r"^missing: no-such-package; pip install .*\[export\]'$", typed.out, re.MULTILINE)


def test_limits_decide_the_exit_code(type_command: Type) -> None:
    words = f"eval {FOLDER} --model {MAKE} --data digits --device cpu"
    assert type_command(f"{words} --min-accuracy 0 --max-macs 1").code == 0
    typed = type_command(f"{words} --min-accuracy 1")
    assert typed.code == 1 and "below --min-accuracy 1" in typed.err and "accuracy" in typed.out
    typed = type_command(f"{words} --max-macs 0.01")
    assert typed.code == 1 and "above --max-macs 0.01" in typed.err


def test_the_last_line_of_a_run() -> None:
    summary = {
        "dense": {"macs": 400, "accuracy": 91.3},
        "compact": {"macs": 100, "accuracy": 91.0},
        "speedup": {"1": {"ratio": 1.24, "low": 1.2, "high": 1.3}},
    }
    shown = closing_line(summary, Path("runs/x"))
    assert shown == "4.0× fewer MACs · −0.30 points · 1.2× faster · saved to runs/x"
    summary["speedup"] = {"1": {"ratio": 1.01, "low": 0.9, "high": 1.1}}
    assert "faster" not in closing_line(summary, Path("runs/x"))
