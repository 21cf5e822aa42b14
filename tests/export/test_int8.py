"""int8 files: what is in them, when they are refused, and that nothing is left when something fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime.quantization
import pytest
import torch
from torch import Tensor, nn

from depl0.errors import ExportError, InputError
from depl0.export import Request, int8, quantize_onnx, write_checked
from depl0.export.int8 import Int8Onnx, calibration_inputs
from depl0.metric import ACCURACY, Metric
from tests.networks.exported import IMAGES, Bessel
from tests.networks.golden import TinyDigits
from tests.support.compare import call, liven
from tests.support.exports import largest_file

pytestmark = pytest.mark.integrations


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return liven(TinyDigits(), IMAGES)


def test_file_holds_int8_weights_and_computes_nearly_the_same(network: nn.Module, tmp_path: Path) -> None:
    network.train()
    found = quantize_onnx(
        network, IMAGES[:1], [IMAGES], tmp_path / "a.onnx", dynamic_batch=True, metadata={"key": "value"}
    )
    network.eval()
    assert (tmp_path / "a.onnx").read_bytes() == found.data and found.before is None
    bits = str(found.weight_bits)
    proto = onnx.load_from_string(found.data)
    onnx.checker.check_model(proto, full_check=True)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    for name in ("stem.weight", "first.conv1.weight", "second.conv2.weight", "classifier.weight"):
        assert tensors[f"{name}_quantized"].data_type == onnx.TensorProto.INT8
        nodes = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
        scale = next(node.input[1] for node in nodes if node.input[0] == f"{name}_quantized")
        assert list(tensors[scale].dims) == [network.get_parameter(name).shape[0]]  # one for each output channel
    assert "BatchNormalization" not in {node.op_type for node in proto.graph.node}
    known = {entry.key: entry.value for entry in proto.metadata_props}
    assert known == {"key": "value", "depl0.int8": "true", "depl0.calibration_images": "512", "depl0.weight_bits": bits}
    wanted = call(network, IMAGES)
    assert float((found.run(IMAGES) - wanted).norm() / wanted.norm()) < 0.05


def largest_weight(data: bytes) -> int:
    tensors = onnx.load_from_string(data).graph.initializer
    weights = [t for t in tensors if t.data_type == onnx.TensorProto.INT8 and t.name.endswith(".weight_quantized")]
    return max(int(abs(onnx.numpy_helper.to_array(tensor).astype(int)).max()) for tensor in weights)


@pytest.mark.parametrize(
    ("machine", "flags", "bits"),
    [
        ("x86_64", "flags : fpu avx avx2", 7),
        ("AMD64", "flags : avx2 avx_vnni", 8),
        ("aarch64", None, 8),
    ],
)
def test_processors_without_vnni_get_weights_of_seven_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str | None, bits: int
) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"model name\t: one\n{flags}\n")
    monkeypatch.setattr(int8.platform, "machine", lambda: machine)
    monkeypatch.setattr(int8, "CPUINFO", tmp_path / "cpuinfo")
    assert int8.bits_without_saturation() == bits


@pytest.mark.parametrize(("bits", "largest"), [(7, 64), (8, 127)])
def test_weights_of_seven_bits_cannot_saturate(network: nn.Module, bits: int, largest: int) -> None:
    """255·127 + 255·127 does not fit into 16 bits, in which x86 without VNNI adds; 255·64 + 255·64 does."""
    found = quantize_onnx(network, IMAGES[:1], [IMAGES], dynamic_batch=True, weight_bits=bits)
    assert (found.weight_bits, largest_weight(found.data)) == (bits, largest)
    assert (2 * 255 * largest < 2**15) == (bits == 7)


def test_fixed_batch_size_is_run_in_parts(network: nn.Module) -> None:
    free = quantize_onnx(network, IMAGES[:1], [IMAGES], dynamic_batch=True).run
    fixed = quantize_onnx(network, IMAGES[:3], [IMAGES]).run
    torch.testing.assert_close(fixed(IMAGES[:7]), free(IMAGES[:7]))


def test_a_file_that_loses_too_much_is_refused_and_not_written(network: nn.Module, tmp_path: Path) -> None:
    scores = {"higher": [91.0, 88.0], "lower": [0.2, 0.9]}
    rmse = Metric("rmse", higher_is_better=False)
    for kind, metric in (("higher", ACCURACY), ("lower", rmse)):
        values = iter(scores[kind])
        with pytest.raises(ExportError, match=rf"int8 loses too much: {metric.label} .* max_drop allows 0.5"):
            quantize_onnx(
                network, IMAGES[:1], [IMAGES], tmp_path / "a.onnx", score=lambda run: next(values), max_drop=0.5,  # noqa: B023
                metric=metric,
            )  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "int8 needs calibration images, and there are none"),
        ([{"images": IMAGES}], "batch 0 of the calibration images must be a tensor or a tuple"),
        ([IMAGES, IMAGES / 0], "batch 1 of the calibration images holds values that are not finite"),
    ],
)
def test_calibration_images_that_cannot_be_used(network: nn.Module, batches: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantize_onnx(network, IMAGES[:1], batches)


def test_only_as_many_calibration_images_as_asked_for() -> None:
    assert [len(batch[0]) for batch in calibration_inputs(iter([IMAGES, IMAGES, IMAGES]), 40)] == [32, 8]


def test_failures_say_what_failed_and_write_nothing(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.onnx"
    with pytest.raises(ExportError, match=r"no operator for prims\.bessel_j0"):
        quantize_onnx(nn.Sequential(nn.Conv2d(1, 2, 3), Bessel()), IMAGES[:1], [IMAGES], path)
    with pytest.raises(ExportError, match="no convolution and no linear layer"):
        quantize_onnx(nn.ReLU(), IMAGES[:1], [IMAGES], path)
    with pytest.raises(InputError, match="max_drop must be a number of at least 0, got -1"):
        quantize_onnx(network, IMAGES[:1], [IMAGES], path, max_drop=-1)
    with pytest.raises(InputError, match="weight_bits must be 7 or 8, or be left out, got 4 instead"):
        quantize_onnx(network, IMAGES[:1], [IMAGES], path, weight_bits=4)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no ranges today")

    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", fail)
    with pytest.raises(ExportError, match="cannot quantize the network: ValueError: no ranges today"):
        quantize_onnx(network, IMAGES[:1], [IMAGES], path)
    assert not list(tmp_path.iterdir())


def test_file_is_checked_by_another_process_and_a_full_disk_leaves_nothing(network: nn.Module, tmp_path: Path) -> None:
    found = quantize_onnx(network, IMAGES[:1], [IMAGES])
    target, request = Int8Onnx(found.data, found.run), Request(network, (IMAGES[:1],))
    with largest_file(1000), pytest.raises(ExportError, match=r"is full: a\.onnx needs [\d,]+ bytes"):
        write_checked(target, request, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
    done = write_checked(target, request, tmp_path / "a.onnx")
    assert done.size == len(found.data)

    def other(images: Tensor) -> Tensor:
        return 2 * found.run(images)

    with pytest.raises(ExportError, match=r"differs by .* \(allowed 0\.05\)"):
        write_checked(Int8Onnx(found.data, other), request, tmp_path / "b.onnx")
