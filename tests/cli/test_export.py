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

from depl0.app.recipes import catalog
from depl0.app.recipes.toml import with_overrides, write_recipe
from depl0.app.runs.paths import trust_code
from tests.cli.conftest import Type

pytestmark = [pytest.mark.integrations, pytest.mark.usefixtures("remembered_plans")]

GOLDEN = Path(__file__).parents[1] / "golden"
NETWORKS = Path(__file__).parents[1] / "networks"
MAKE = f"{NETWORKS / 'golden.py'}:TinyDigits"
BLOCKS = GOLDEN / "v1" / "blocks"


def test_a_folder_alone_is_exported_with_a_factory(type_command: Type) -> None:
    typed = type_command(f"export {BLOCKS} --to onnx --opset 19 --model {MAKE}")
    assert (typed.code, typed.err) == (0, "")
    expected = load_file(BLOCKS / "expected.safetensors")
    session = onnxruntime.InferenceSession("blocks.onnx")
    for image, scores in zip(expected["images"], expected["scores"], strict=True):
        found = session.run(["output"], {"input": image[None].numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found)[0], scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export nothing --to onnx", "nothing holds neither a run nor a compact network"),
        (f"export {BLOCKS} --to onnx", "holds a compact TinyDigits, but not what builds the dense TinyDigits"),
        (f"export {BLOCKS} --to onnx --model resnet20", "is of another network: stem.weight was of shape (6, 1, 3, 3)"),
    ],
    ids=["no run", "no factory", "other network"],
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"export {BLOCKS} --to onnx --int8 --model {MAKE}", "int8 needs calibration images and a test set"),
        ("export run --to safetensors --int8", "--int8 is for --to onnx, got --to safetensors"),
        ("export run --to onnx --max-drop 2", "--max-drop is for --int8 only"),
    ],
)
def test_bad_input_of_int8(words: str, message: str, type_command: Type, tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    typed = type_command(words)
    assert typed.code in (1, 2) and typed.out == ""
    assert message in typed.err and "Traceback" not in typed.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_no_path_of_this_machine(type_command: Type, tmp_path: Path) -> None:
    own = shutil.copy(NETWORKS / "tiny.py", tmp_path / "own.py")
    typed = type_command(
        f"prune --model {own}:TinyNet --data {own}:make_data --method l1-norm --budget 0.5 --epochs 1 "
        "--finetune-epochs 0 --batch-size 24 --device cpu --out run --quiet"
    )
    assert typed.code == 0, typed.err
    for kind in ("onnx", "pt2", "safetensors"):
        typed = type_command(f"export {tmp_path}/run --to {kind}")
        assert typed.code == 0, typed.err
        assert str(tmp_path).encode() not in (tmp_path / f"run.{kind}").read_bytes()
    assert b"own.py:TinyNet" in (tmp_path / "run.onnx").read_bytes()
