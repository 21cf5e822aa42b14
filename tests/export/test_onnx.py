"""Networks as ONNX: what the file says, which opsets there are, and what ONNX cannot express."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from depl0.errors import ExportError, InputError, TraceError
from depl0.export import export_onnx
from tests.networks.exported import Bessel
from tests.support.compare import call, liven

pytestmark = pytest.mark.integrations

IMAGE = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))


def small() -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return liven(nn.Sequential(body, nn.Flatten(), nn.Linear(4, 3)), IMAGE)


class Fixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, 128) if x.shape[0] == 2 else x.reshape(1, 128)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def error_of(data: bytes, model: nn.Module, inputs: Tensor) -> float:
    found = onnxruntime.InferenceSession(data).run(["output"], {"input": inputs.numpy()})[0]
    wanted = call(model, inputs)
    return float((wanted - torch.from_numpy(found)).abs().max() / wanted.abs().max())


def test_file_says_what_it_is_and_nothing_of_this_machine(tmp_path: Path) -> None:
    model = small()
    data = export_onnx(model, IMAGE, tmp_path / "small.onnx", metadata={"accuracy": "91.5"})
    assert (tmp_path / "small.onnx").read_bytes() == data
    proto = onnx.load_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 18
    assert {entry.key: entry.value for entry in proto.metadata_props} == {"accuracy": "91.5"}
    assert "BatchNormalization" not in {node.op_type for node in proto.graph.node}
    assert str(Path(__file__).parent).encode() not in data and b".py" not in data
    assert error_of(data, model, IMAGE) < 1e-5


def test_free_batch_size() -> None:
    model = small()
    data = export_onnx(model, IMAGE, dynamic_batch=True)
    proto = onnx.load_from_string(data)
    for value, rest in ((proto.graph.input[0], [2, 8, 8]), (proto.graph.output[0], [3])):
        first, *others = value.type.tensor_type.shape.dim
        assert first.dim_param == "batch" and [dim.dim_value for dim in others] == rest
    for batch in (1, 2, 5):
        assert error_of(data, model, torch.randn(batch, 2, 8, 8)) < 1e-5


@pytest.mark.parametrize("opset", [18, 21])
def test_opsets(opset: int) -> None:
    model = small()
    data = export_onnx(model, IMAGE, opset=opset)
    assert onnx.load_from_string(data).opset_import[0].version == opset
    assert error_of(data, model, IMAGE) < 1e-5


def test_opset_too_old_or_too_new() -> None:
    for opset in (17, 99):
        with pytest.raises(InputError, match=rf"opset must be an integer from 18 to \d+, got {opset} instead"):
            export_onnx(small(), IMAGE, opset=opset)


def test_operator_that_onnx_lacks() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.ReLU(), Bessel()))
    with pytest.raises(ExportError, match=r"no operator for prims\.bessel_j0, .*\nhint: replace"):
        export_onnx(model, IMAGE)


def test_networks_that_cannot_be_recorded() -> None:
    with pytest.raises(TraceError, match=r"Fixed cannot be recorded with a free batch size.*\n.*without dynamic_batch"):
        export_onnx(Fixed(), IMAGE, dynamic_batch=True)
    with pytest.raises(TraceError, match="Branching cannot be recorded"):
        export_onnx(Branching(), IMAGE)
