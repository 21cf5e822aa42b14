"""Mistakes: a message that says what to do, the right exit code, no traceback, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0.errors import InputError
from tests.cli.conftest import Type

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SHORT = (
    "prune digits --epochs 1 --finetune-epochs 0 --set data.limit_train=128 --device cpu "
    "--set search.dense_baseline=false"
)

FIVE_CLASSES = """
from torch import nn
def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("prune digitz", ["there is no recipe called 'digitz'", "did you mean digits"]),
        (f"{SHORT} --model resnet65", ["model.spec", "did you mean resnet56"]),
        (f"{SHORT} --model nowhere.py:make", ["nowhere.py"]),
        (f"{SHORT} --data digit", ["got 'digit' instead", "did you mean digits?"]),
        (f"{SHORT} --budget 50", ["got 50.0 instead", "did you mean 0.5?"]),
        (f"{SHORT} --budget 0.0001", ["a budget of 0.0001 of the macs is infeasible", "use at least 0.01"]),
        (f"{SHORT} --set search.epoch=3", ["search.epoch", "did you mean search.epochs"]),
        (f"{SHORT} --weights none.pt", ["weights file none.pt does not exist"]),
        (f"{SHORT} --model five.py:make", ["scores of shape (1, 5), but the data has 10 classes"]),
        (f"{SHORT} --out five.py", ["five.py is a file"]),
        ("eval nothing", ["nothing holds neither a run nor a compact network"]),
    ],
)
def test_wrong_usage(type_command: Type, tmp_path: Path, options: str, words: list[str]) -> None:
    (tmp_path / "five.py").write_text(FIVE_CLASSES)
    typed = type_command(options)
    assert typed.code == 2, typed.err
    assert typed.out == ""
    *before, error = typed.err.partition("error: ")[::2]
    assert all(line.endswith(" …") for text in before for line in text.splitlines()), typed.err
    assert error
    assert "Traceback" not in typed.err
    for word in words:
        assert word in typed.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("prune digits --epochs many", "Usage: depl0"),
        ("pruen", "Usage: depl0"),
        ("prune digits --limit-test 500", "No such option: --limit-test. Write --set data.limit_test=…"),
    ],
)
def test_words_that_are_no_command(type_command: Type, words: str, said: str) -> None:
    typed = type_command(words)
    assert (typed.code, typed.out) == (2, "") and said in typed.err


def test_debug_shows_the_traceback(type_command: Type) -> None:
    with pytest.raises(InputError):
        type_command("prune digitz --debug")


def test_another_run_is_not_written_over(type_command: Type, tmp_path: Path) -> None:
    assert type_command(f"{SHORT} --out run").code == 0
    before = (tmp_path / "run" / "summary.json").read_bytes()
    typed = type_command(f"{SHORT} --out run --seed 1")
    assert typed.code == 2
    assert "holds another run already" in typed.err and "--resume" in typed.err
    typed = type_command(f"{SHORT} --out run --seed 1 --resume")
    assert typed.code == 2
    assert "run.seed was 0 and is now 1" in typed.err
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    assert type_command(f"{SHORT} --out run --resume --json").code == 0


def test_a_compact_network_without_its_run(type_command: Type, tmp_path: Path) -> None:
    assert type_command(f"{SHORT} --out run").code == 0
    (tmp_path / "run" / "compact").rename(tmp_path / "alone")
    assert "not finished" in type_command("eval run").err
    assert type_command("eval alone").code == 2
    assert type_command("eval alone --data digits --model small_cnn").code == 0
    other = type_command("eval alone --data digits --model lenet5 --set data.image_size=28")
    assert other.code == 2
    assert "of another network" in other.err
