"""Files for OpenVINO and ExecuTorch, each run by its own runtime in another process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from depl0.errors import ExportError, InputError
from depl0.export import Request, target, write_checked
from depl0.export.runtimes import OpenVino

pytestmark = pytest.mark.integrations

PACKAGES = {"openvino": "openvino", "executorch": "executorch"}
IMAGE = torch.zeros(1, 3, 8, 8)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    ).eval()  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_a_file_is_verified_by_its_runtime(name: str, tmp_path: Path) -> None:
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    kind = target(name)
    path = tmp_path / f"small{kind.suffix}"
    done = write_checked(kind, Request(small(), (IMAGE,), {"depl0.accuracy": "91.5"}), path)
    assert done.max_error <= 1e-5
    assert done.size == sum(file.stat().st_size for file in tmp_path.iterdir())
    beside = {"small.bin"} if name == "openvino" else set()
    assert {file.name for file in tmp_path.iterdir()} == {path.name} | beside


def test_openvino_keeps_metadata_and_a_free_batch(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    network, path = small(), tmp_path / "small.xml"
    write_checked(OpenVino(), Request(network, (IMAGE,), {"depl0.accuracy": "91.5"}, dynamic_batch=True), path)
    model = openvino.Core().read_model(path)
    assert model.get_rt_info(["depl0", "accuracy"]).value == "91.5"
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    found = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([images.numpy()])[0]
    torch.testing.assert_close(torch.from_numpy(found), network(images).detach(), rtol=1e-4, atol=1e-5)


class Wrong(OpenVino):  # type: ignore[misc]
    """A format with a mistake in it: another network."""

    def encode(self, request: Request) -> dict[str, bytes]:
        other = small()
        with torch.no_grad():
            other[5].weight[0, 0] *= 1.01
        return super().encode(Request(other, request.example))


def test_a_wrong_file_is_removed_with_the_file_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "small.bin").write_bytes(b"older")
    with pytest.raises(ExportError, match=r"verification failed: output .* differs"):
        write_checked(Wrong(), Request(small(), (IMAGE,)), tmp_path / "small.xml")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("small.bin", b"older")]


def test_a_name_without_the_suffix_is_refused_where_there_are_two_files(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(InputError, match=r"must end in \.xml"):
        write_checked(OpenVino(), Request(small(), (IMAGE,)), tmp_path / "small")
