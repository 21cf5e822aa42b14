"""``depl0 prune … --set deploy.then=int8``: from data to the deployed file."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime
import pytest
from safetensors.torch import save_file
from torch import nn

from tests.cli.conftest import Type
from tests.networks.golden import TinyDigits

pytestmark = pytest.mark.usefixtures("remembered_plans")

NETWORK = Path(__file__).parents[1] / "networks" / "golden.py"
SHORT = (
    f"prune --model {NETWORK}:TinyDigits --data digits --budget 0.5 --set gates.groups=inner --epochs 1 "
    "--finetune-epochs 1 --set data.limit_train=128 --batch-size 16 --device cpu "
    "--set search.dense_baseline=false --out run"
)


def test_a_run_ends_in_the_deployed_file(type_command: Type, tmp_path: Path) -> None:
    options = "--set deploy.then=int8 --set deploy.max_drop=100 --set deploy.calibration_images=64"
    typed = type_command(f"{SHORT} {options}")
    assert typed.code == 0, typed.err
    run = tmp_path / "run"
    assert sorted(path.name for path in (run / "deployed").iterdir()) == ["compact.int8.onnx", "compact.onnx"]
    found = json.loads((run / "deployed.json").read_text())
    names = ["dense, float", "compact, float", "dense, int8", "compact, int8"]
    assert [variant["name"] for variant in found["variants"]] == names
    dense, compact, _, small = found["variants"]
    assert dense["score"] is None and not found["dense_is_trained"]  # its weights were never there
    assert compact["score"] == json.loads((run / "summary.json").read_text())["compact"]["accuracy"]
    assert small["bytes"] == (run / "deployed" / "compact.int8.onnx").stat().st_size
    assert all(variant["ms"] > 0 for variant in found["variants"])
    lines = typed.out.splitlines()
    table = lines[next(place for place, line in enumerate(lines) if "latency, batch 1" in line and "file" in line) :]
    assert [line.split("  ")[0] for line in table[1:5]] == names and f"{small['score']:.2f} %" in table[4]
    assert table[-1] == "deployed: run/deployed/compact.int8.onnx"
    session = onnxruntime.InferenceSession(run / "deployed" / "compact.int8.onnx")
    assert session.get_modelmeta().custom_metadata_map["depl0.int8"] == "true"

    again = type_command(f"{SHORT} {options} --resume")
    assert again.code == 0 and again.out.splitlines()[-9:] == typed.out.splitlines()[-9:]
    assert type_command("report run --out report").code == 0
    assert "<h3>Deployed</h3>" in (tmp_path / "report" / "report.html").read_text()


def test_weights_with_a_new_head_can_be_deployed(type_command: Type, tmp_path: Path) -> None:
    """They always failed: the dense network was to take all of them."""
    other = TinyDigits()
    other.classifier = nn.Linear(6, 7)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    options = "--set deploy.then=int8 --set deploy.max_drop=100 --set deploy.calibration_images=64"
    typed = type_command(f"{SHORT} --weights other.safetensors {options}")
    assert typed.code == 0, typed.err
    found = json.loads((tmp_path / "run" / "deployed.json").read_text())
    assert not found["dense_is_trained"] and found["variants"][0]["score"] is None


def test_what_may_follow_a_run(type_command: Type, tmp_path: Path) -> None:
    typed = type_command(f"{SHORT} --set deploy.then=int4")
    assert typed.code == 2 and "recipe field deploy.then must be one of 'nothing', 'int8', got 'int4'" in typed.err
    assert not list(tmp_path.iterdir())
