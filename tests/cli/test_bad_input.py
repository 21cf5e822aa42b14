"""Mistakes: a message that says what to do, the right exit code, no traceback, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Type
from tests.support.layouts import write_cifar10, write_mnist
from tests.torchvision_shim import import_torchvision

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
        (f"{SHORT} --data mnist", ["must be written mnist:DIR", "mnist:DIR"]),
        (f"{SHORT} --budget 0.5 --set penalty.weight=1e-6", ["gates.budget (0.5) and penalty.weight (1e-06) are"]),
        ("prune --data digits", ["--data digits needs a network", "--model resnet20"]),
        ("plan lenet5 --image-size 48x", ["--image-size must be a side, or height and width", "48x80"]),
        (f"{SHORT} --budget 50", ["got 50 instead", "for 50 % write 0.5."]),
        (f"{SHORT} --budget 0", ["--budget takes numbers above 0 and at most 1", "got 0 instead"]),
        (f"{SHORT} --budget 1.5", ["--budget takes numbers above 0 and at most 1", "got 1.5"]),
        (f"{SHORT} --budget 0.0001", ["a budget of 0.0001 of the macs is infeasible", "use at least 0.01"]),
        (f"{SHORT} --of seconds", ["--of must be one of macs, params, latency"]),
        (f"{SHORT} --set gates.generator=fcc", ["gates.generator", "fc"]),
        (f"{SHORT} --set gates.direction=sideways", ["gates.direction must be 'forward' or 'backward'"]),
        (f"{SHORT} --set search.epoch=3", ["search.epoch", "did you mean search.epochs?"]),
        (f"{SHORT} --set search.epochs", ["--set takes section.field=value"]),
        (f"{SHORT} --epochs -1", ["search.epochs"]),
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
        ("plan resnet65", ["did you mean resnet56"]),
        ("plan resnet20 --groups some", ["some"]),
        ("recipes show resnet65-cifar10", ["no recipe called 'resnet65-cifar10'", "did you mean resnet56-cifar10"]),
        ("recipes download cifar1000 d", ["must be one of 'cifar10', 'cifar100'"]),
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


def test_missing_data(type_command: Type) -> None:
    typed = type_command(f"{SHORT} --data cifar10:nowhere")
    assert typed.code == 2
    assert "nowhere" in typed.err and "Traceback" not in typed.err


@pytest.mark.parametrize("layout", ["cifar10", "mnist"])
def test_damaged_data(type_command: Type, tmp_path: Path, layout: str) -> None:
    if layout == "cifar10":
        broken = write_cifar10(tmp_path / "d") / "data_batch_3.bin"
    else:
        broken = write_mnist(tmp_path / "d") / "MNIST/raw/train-images-idx3-ubyte"
    broken.write_bytes(broken.read_bytes()[:-50])
    typed = type_command(f"{SHORT} --data {layout}:d")
    assert typed.code == 2
    assert (broken.name if layout == "cifar10" else "MNIST/raw") in typed.err and "Traceback" not in typed.err
    assert not (tmp_path / "runs").exists()


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


def test_a_run_that_is_not_finished_cannot_be_evaluated(type_command: Type, tmp_path: Path) -> None:
    assert type_command(f"{SHORT} --out run").code == 0
    for file in (tmp_path / "run" / "compact").iterdir():
        file.unlink()
    typed = type_command("eval run")
    assert typed.code == 2
    assert "not finished" in typed.err


def test_a_compact_network_without_its_run(type_command: Type, tmp_path: Path) -> None:
    assert type_command(f"{SHORT} --out run").code == 0
    (tmp_path / "run" / "compact").rename(tmp_path / "alone")
    assert type_command("eval alone").code == 2
    assert type_command("eval alone --data digits --model small_cnn").code == 0
    other = type_command("eval alone --data digits --model lenet5 --set data.image_size=28")
    assert other.code == 2
    assert "for another network" in other.err


def test_a_loss_that_becomes_nan(type_command: Type, tmp_path: Path) -> None:
    words = SHORT.replace("--epochs 1", "--epochs 3")
    typed = type_command(f"{words} --lr 1e30 --set run.checkpoint_minutes=0 --out run")
    assert typed.code == 1
    assert "step " in typed.err and "weight_optimizer.lr" in typed.err and "Traceback" not in typed.err
    assert typed.out == ""
    again = type_command(f"{words} --lr 1e30 --set run.checkpoint_minutes=0 --out run --resume")
    assert again.code == 1  # the same, and no crash


# -- Ctrl-C, for real ------------------------------------------------------------------------------------------------


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "depl0", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, lines: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_text().count("\n") >= lines:
            return
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate())


SLOW = """
import time
from importlib import import_module
from pathlib import Path
from depl0.app.models.small_cnn import SmallCNN

LINES, END = Path("run/metrics.jsonl"), time.monotonic() + 600

class Slow(SmallCNN):
    def forward(self, x):
        while self.training and LINES.exists() and LINES.stat().st_size and not Path("asked").exists():
            assert time.monotonic() < END
            time.sleep(0.02)
        return super().forward(x)

def make():
    return Slow(10, 1)
"""


def test_ctrl_c_saves_and_says_how_to_go_on(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)  # after the first epoch it waits until it has been asked to stop
    words = "prune digits --model slow.py:make --epochs 4 --finetune-epochs 1 --set data.limit_train=128 --device cpu "
    words += "--out run --set search.dense_baseline=false"
    process = command(tmp_path, *words.split())
    wait_for(tmp_path / "run" / "metrics.jsonl", 1, process)
    process.send_signal(signal.SIGINT)
    (tmp_path / "asked").touch()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 75
    assert out == ""
    assert "interrupted at step" in err and "--resume" in err and "Traceback" not in err
    step = int(err.split("interrupted at step ")[1].split(";")[0])
    assert step in (2, 3)  # the first epoch has two
    typed = type_command(f"{words} --resume --json")
    assert typed.code == 0
    assert f"resumed from step {step}" in typed.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "event" not in line] == [1, 2, 3, 4, 1]
    assert json.loads(typed.out)["steps"] == 5 * 2
