"""``depl0 export`` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file

import depl0
from depl0.app.recipes import catalog
from depl0.app.recipes.toml import with_overrides, write_recipe
from depl0.app.runs.paths import trust_code
from tests.cli.conftest import Type

pytestmark = [pytest.mark.integrations, pytest.mark.usefixtures("remembered_plans")]

GOLDEN = Path(__file__).parents[1] / "golden"
NETWORKS = Path(__file__).parents[1] / "networks"
MAKE = f"{NETWORKS / 'golden.py'}:TinyDigits"
BLOCKS = GOLDEN / "v1" / "blocks"


def test_a_run_without_its_blocks_is_exported(type_command: Type) -> None:
    """λ is so large that every group closes; the network lives on its shortcuts."""
    typed = type_command(
        f"prune --model {MAKE} --data digits --set gates.groups=inner --set penalty.weight=1 --set penalty.kind=macs "
        "--set gates.remove_blocks=true --epochs 1 --finetune-epochs 1 --set data.limit_train=128 --batch-size 16 "
        "--set gate_optimizer.lr=1 --device cpu "
        "--set search.dense_baseline=false --out run --quiet --json"
    )
    assert typed.code == 0, typed.err
    summary = json.loads(typed.out)
    assert summary["removed"] == ["first.conv1", "first.conv2", "second.conv1", "second.conv2"]

    typed = type_command("export run --to onnx --dynamic-batch --out small.onnx")
    assert typed.code == 0, typed.err
    assert typed.out.startswith("small.onnx: ")
    said = {entry.key: entry.value for entry in onnx.load("small.onnx").metadata_props}
    assert said["depl0.version"] == depl0.__version__ and said["depl0.network"] == "TinyDigits"
    assert json.loads(said["depl0.class_names"]) == [str(digit) for digit in range(10)]
    assert json.loads(said["depl0.accuracy"]) == summary["compact"]["accuracy"]
    assert json.loads(said["depl0.macs"]) == summary["compact"]["macs"]
    assert {"depl0.input_mean", "depl0.input_std", "depl0.params"} <= said.keys()
    assert said["depl0.model"] == "golden.py:TinyDigits"


def test_a_folder_alone_is_exported_with_a_factory(type_command: Type) -> None:
    typed = type_command(f"export {BLOCKS} --to onnx --opset 19 --model {MAKE}")
    assert (typed.code, typed.err) == (0, "")
    expected = load_file(BLOCKS / "expected.safetensors")
    session = onnxruntime.InferenceSession("blocks.onnx")
    for image, scores in zip(expected["images"], expected["scores"], strict=True):
        found = session.run(["output"], {"input": image[None].numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found)[0], scores, rtol=1e-5, atol=1e-5)


def test_plain_weights(type_command: Type) -> None:
    typed = type_command(f"export {BLOCKS} --to safetensors --model {MAKE} --out small.safetensors")
    assert typed.code == 0, typed.err
    saved = load_file(BLOCKS / "compact.safetensors")
    found = load_file("small.safetensors")
    assert saved.keys() == found.keys() and all(torch.equal(saved[name], found[name]) for name in saved)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export nothing --to onnx", "nothing holds neither a run nor a compact network"),
        (f"export {BLOCKS} --to onnx", "holds a compact TinyDigits, but not what builds the dense TinyDigits"),
        (
            f"export {BLOCKS} --to tflite --model {MAKE}",
            "'pt2', 'safetensors', got 'tflite'",
        ),
        (f"export {BLOCKS} --to onnx --opset 9 --model {MAKE}", "opset must be an integer from 18"),
        (f"export {BLOCKS} --to onnx --shape 1,x --model {MAKE}", "--shape takes integers"),
        (f"export {BLOCKS} --to onnx --model resnet20", "holds a compact TinyDigits, but for another network"),
    ],
    ids=["no run", "no factory", "format", "opset", "shape", "other network"],
)
def test_bad_input(words: str, message: str, type_command: Type) -> None:
    typed = type_command(words)
    assert typed.code in (1, 2) and typed.out == ""
    assert message in typed.err and "Traceback" not in typed.err
    assert not list(Path().iterdir())


def test_run_whose_class_cannot_be_imported(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copytree(BLOCKS, tmp_path / "run" / "compact")
    recipe = with_overrides(catalog.get("digits"), {"model.spec": "gone.py:make"})
    (tmp_path / "run" / "recipe.toml").write_text(write_recipe(recipe))
    typed = type_command("export run --to safetensors")
    assert typed.code == 2
    assert "the network of run cannot be built" in typed.err and "needs the file gone.py" in typed.err
    assert "hint: pass what builds the dense network: --model FACTORY" in typed.err
    assert type_command(f"export run --to safetensors --model {MAKE}").code == 0
    assert (tmp_path / "run.safetensors").is_file()


def a_run(folder: Path) -> Path:
    """Write a run of the golden network on the digits, without training it."""
    shutil.copytree(BLOCKS, folder / "compact")
    recipe = with_overrides(catalog.get("digits"), {"model.spec": MAKE})
    trust_code(recipe)
    (folder / "recipe.toml").write_text(write_recipe(recipe))
    return folder


def test_int8_of_a_run(type_command: Type, tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    typed = type_command("export run --to onnx --int8 --max-drop 100 --calibration-images 64 --dynamic-batch")
    assert typed.code == 0, typed.err
    size = (tmp_path / "run.int8.onnx").stat().st_size
    assert typed.out.startswith(f"run.int8.onnx: {size:,} bytes, read by another process\naccuracy ")
    said = {entry.key: entry.value for entry in onnx.load("run.int8.onnx").metadata_props}
    assert said["depl0.int8"] == "true" and said["depl0.calibration_images"] == "64"
    assert f"{json.loads(said['depl0.accuracy']):.2f} % in int8" in typed.out
    assert f"{json.loads(said['depl0.float_accuracy']):.2f} % in float" in typed.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"export {BLOCKS} --to onnx --int8 --model {MAKE}", "int8 needs calibration images and a test set"),
        ("export run --to onnx --int8 --data cifar10:nowhere", "the data of the run cannot be opened"),
        ("export run --to onnx --int8 --max-drop -1", "max_drop must be a number of at least 0"),
        ("export run --to safetensors --int8", "--int8 is for --to onnx, got --to safetensors"),
        ("export run --to onnx --max-drop 2", "--max-drop is for --int8 only"),
        ("export run --to pt2 --data digits", "--data is for --int8 only"),
        ("export run --to tflite", "'pt2', 'safetensors', got 'tflite'"),
    ],
)
def test_bad_input_of_int8(words: str, message: str, type_command: Type, tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    typed = type_command(words)
    assert typed.code in (1, 2) and typed.out == ""
    assert message in typed.err and "Traceback" not in typed.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


OWN = """
import torch
from torch import nn

class TinyNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(6, 2))

def make_data():
    images = torch.arange(72 * 36, dtype=torch.uint8).view(72, 1, 6, 6)
    return (images[:48], torch.arange(48) % 2), (images[48:], torch.arange(24) % 2)
"""


def test_no_path_of_this_machine(type_command: Type, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    text = "from depl0.app.methods import Scored\nclass Flat(Scored):\n    def scores(self, gated, *others):\n"
    (tmp_path / "flat.py").write_text(f"{text}        return gated.log_alpha().detach()\n")
    own = f"{tmp_path}/own.py"
    typed = type_command(
        f"prune --model {own}:TinyNet --data {own}:make_data --method {tmp_path}/flat.py:Flat --budget 0.5 --epochs 1 "
        "--finetune-epochs 0 --batch-size 24 --device cpu --out run --quiet"
    )
    assert typed.code == 0, typed.err
    for kind in ("onnx", "pt2", "safetensors"):
        typed = type_command(f"export {tmp_path}/run --to {kind}")
        assert typed.code == 0, typed.err
        assert str(tmp_path).encode() not in (tmp_path / f"run.{kind}").read_bytes()
    assert b"own.py:TinyNet" in (tmp_path / "run.onnx").read_bytes()
