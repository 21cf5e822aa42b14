"""A file is kept only if a process without depl0 gets the network's outputs from it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import onnx
import pytest
import torch
from safetensors import safe_open
from torch import nn

import depl0
from depl0.errors import ExportError, InputError
from depl0.export import Request, names, target, write_checked
from depl0.export.targets import Target
from depl0.replacements.constant import ConstantLayer
from tests.golden.write import gated_digits
from tests.networks.golden import TinyDigits
from tests.support.exports import largest_file

pytestmark = pytest.mark.integrations

IMAGE = torch.zeros(1, 1, 8, 8)


@pytest.fixture(scope="module")
def compact() -> nn.Module:
    """A network with a block taken out."""
    return gated_digits(("first.conv1",)).extract(remove_blocks=True)


def of(name: str) -> Target:
    return target(name)


class Changed(type(of("onnx"))):  # type: ignore[misc]
    """A format with a mistake in it: one weight differs a little."""

    def encode(self, request: Request) -> bytes:
        other = TinyDigits()
        other.load_state_dict(request.module.state_dict())
        with torch.no_grad():
            other.classifier.weight[0, 0] *= 1.001
        return super().encode(Request(other, request.example))


class Needy(type(of("onnx"))):  # type: ignore[misc]
    """A format whose reader needs depl0."""

    reader = of("onnx").reader + "\nimport depl0.surgery.files\n"


@pytest.mark.parametrize("name", ["onnx", "pt2", "safetensors"])
def test_network_without_a_block_is_saved_loaded_and_exported(name: str, compact: nn.Module, tmp_path: Path) -> None:
    module = depl0.load(depl0.save(compact, tmp_path / "small"), TinyDigits).train()
    assert isinstance(module.first.conv2, ConstantLayer)
    request = Request(module, (IMAGE,), {"depl0.accuracy": "91.5"}, dynamic_batch=name != "safetensors")
    done = write_checked(of(name), request, tmp_path / f"small.{name}")
    assert done.path.stat().st_size == done.size and done.max_error < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", f"small.{name}"]
    assert module.training
    assert METADATA[name](done.path) == {"depl0.accuracy": "91.5"}
    assert str(Path(__file__).parents[2]).encode() not in unpacked(done.path)


def of_onnx(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def of_pt2(path: Path) -> dict[str, str]:
    extra = {"metadata.json": ""}
    torch.export.load(path, extra_files=extra)
    return dict(json.loads(extra["metadata.json"]))


def of_safetensors(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())


METADATA = {"onnx": of_onnx, "pt2": of_pt2, "safetensors": of_safetensors}


def unpacked(path: Path) -> bytes:
    """Return all bytes of a file, those of an archive's members included."""
    data = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            data += b"".join(archive.read(name) for name in archive.namelist())
    return data


def test_mismatch_removes_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    (tmp_path / "small.onnx").write_text("old")
    with pytest.raises(ExportError, match=r"output \d\.0 differs by .* \(allowed 1e-05\)\. The file is removed"):
        write_checked(Changed(), Request(TinyDigits().eval(), (IMAGE,)), tmp_path / "small.onnx")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("small.onnx", "old")]


def test_reader_has_no_depl0(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"without depl0, and is removed: .*depl0"):
        write_checked(Needy(), Request(TinyDigits(), (IMAGE,)), tmp_path / "small.onnx")
    assert not list(tmp_path.iterdir())


def test_full_disk_leaves_nothing(compact: nn.Module, tmp_path: Path) -> None:
    with largest_file(1000), pytest.raises(ExportError, match=r"is full: small\.file needs [\d,]+ bytes"):
        write_checked(of("safetensors"), Request(compact, (IMAGE,)), tmp_path / "small.file")
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(compact: nn.Module, tmp_path: Path) -> None:
    request = Request(compact, (IMAGE,))
    with pytest.raises(InputError, match="is a folder, not a file"):
        write_checked(of("safetensors"), request, tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        write_checked(of("safetensors"), request, tmp_path / "missing" / "small.safetensors")


def test_options_that_a_format_does_not_have(compact: nn.Module, tmp_path: Path) -> None:
    for name, options in (
        ("pt2", {"opset": 18}),
        ("safetensors", {"opset": 18}),
        ("safetensors", {"dynamic_batch": True}),
    ):
        with pytest.raises(InputError, match=r"(opset|dynamic_batch) is"):
            write_checked(of(name), Request(compact, (IMAGE,), **options), tmp_path / "small")
    assert names() == ("executorch", "onnx", "openvino", "pt2", "safetensors")
    with pytest.raises(InputError, match=r"one of .*'onnx', .*, got 'onx' instead.\nhint: did you mean onnx"):
        of("onx")


def test_diverged_network_is_refused(tmp_path: Path) -> None:
    model = TinyDigits()
    torch.nn.init.constant_(model.classifier.bias, float("nan"))
    with pytest.raises(ExportError, match="not finite"):
        write_checked(of("onnx"), Request(model, (IMAGE,)), tmp_path / "small.onnx")
