"""Mistakes: a message that says what to do, the right exit code, no traceback, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from depl0._util.optional import import_torchvision
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
def two():
    return nn.Linear(7, 10)
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("prune digitz", ["there is no recipe called 'digitz'", "did you mean digits"]),
        ("prune none.toml", ["recipe file none.toml does not exist"]),
        (f"{SHORT} --model resnet65", ["model.spec", "did you mean resnet56"]),
        (f"{SHORT} --model torchvision:resnet18x", ["resnet18x", "did you mean resnet18"]),
        (f"{SHORT} --model nowhere.py:make", ["nowhere.py"]),
        (f"{SHORT} --data digit", ["got 'digit' instead", "did you mean digits?"]),
        (f"{SHORT} --data cifar10:nowhere", ["nowhere"]),
        (f"{SHORT} --data mnist", ["must be written mnist:DIR", "mnist:DIR"]),
        (f"{SHORT} --budget 0.5 --set penalty.weight=1e-6", ["gates.budget (0.5) and penalty.weight (1e-06) are"]),
        ("prune --data digits", ["--data digits needs a network", "--model resnet20"]),
        ("plan lenet5 --image-size 48x", ["--image-size must be a side, or height and width", "48x80"]),
        (f"{SHORT} --budget 50", ["got 50 instead", "for 50 % write 0.5."]),
        ("prune digits --budget 0.5,0.25", ["--budget takes one fraction here, got 0.5,0.25", "compare --budgets"]),
        (f"{SHORT} --budget 0.0001", ["a budget of 0.0001 of the macs is infeasible", "use at least 0.01"]),
        (f"{SHORT} --of seconds", ["--of must be one of macs, params, latency"]),
        (f"{SHORT} --set gates.direction=sideways", ["gates.direction must be 'forward' or 'backward'"]),
        (f"{SHORT} --set search.epoch=3", ["search.epoch", "did you mean search.epochs?"]),
        (f"{SHORT} --set search.epochs", ["--set takes section.field=value"]),
        (f"{SHORT} --lr 0", ["weight_optimizer.lr"]),
        (f"{SHORT} --weights none.pt", ["weights file none.pt does not exist"]),
        (f"{SHORT} --set run.precision=fp16", ["fp16 needs a GPU"]),
        (f"{SHORT} --device tpu", ["run.device"]),
        (f"{SHORT} --model five.py:make", ["scores of shape (1, 5), but the data has 10 classes"]),
        (f"{SHORT} --model five.py:two", ["the network does not run", "(1, 1, 8, 8)"]),
        (f"{SHORT} --set data.limit_train=5000", ["limit_train", "1,437"]),
        (f"{SHORT} --out five.py", ["five.py is a file"]),
        (f"{SHORT} --out .", ["is not empty and holds no run"]),
        ("eval nothing", ["nothing holds neither a run nor a compact network"]),
        ("plan resnet20 --groups some", ["some"]),
        ("recipes show resnet65-cifar10", ["no recipe called 'resnet65-cifar10'", "did you mean resnet56-cifar10"]),
    ],
)
def test_wrong_usage(type_command: Type, tmp_path: Path, options: str, words: list[str]) -> None:
    if "torchvision" in options:
        import_torchvision()
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
    "words", ["prune digits --epochs many", "prune digits --no-such-option", "pruen", "eval", "plan"]
)
def test_words_that_are_no_command(type_command: Type, words: str) -> None:
    typed = type_command(words)
    assert (typed.code, typed.out) == (2, "")
    assert "Usage: depl0" in typed.err


def test_an_option_that_is_a_recipe_field(type_command: Type) -> None:
    typed = type_command("prune digits --limit-test 500")
    assert (typed.code, typed.out) == (2, "")
    assert "No such option: --limit-test. Write --set data.limit_test=…" in typed.err


def test_cuda_without_one(type_command: Type) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    typed = type_command(SHORT.replace("--device cpu", "--device cuda"))
    assert typed.code == 2
    assert "torch sees no CUDA device" in typed.err


def test_debug_shows_the_traceback(type_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    from depl0.errors import InputError

    with pytest.raises(InputError):
        type_command("prune digitz --debug")
    monkeypatch.setenv("DEPL0_DEBUG", "1")
    with pytest.raises(InputError):
        type_command("prune digitz")


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
    assert "for another network" in other.err
