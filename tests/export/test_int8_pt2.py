"""int8 by torchao: what is in the file, which layers stay in float, and that nothing is left when something fails."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depl0.errors import ExportError, FixedBatchError, InputError, NotInstalledError
from depl0.export import Request, quantize_pt2, write_checked
from depl0.export.int8 import torchao
from depl0.export.int8.torchao import Int8Pt2
from tests.networks.exported import IMAGES, Outlier
from tests.networks.golden import TinyDigits
from tests.support.compare import call, liven

pytestmark = pytest.mark.integrations


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return liven(TinyDigits(), IMAGES)


def test_file_holds_int8_weights_and_computes_nearly_the_same(network: nn.Module, tmp_path: Path) -> None:
    found = quantize_pt2(network, IMAGES[:1], [IMAGES], tmp_path / "a.pt2", metadata={"key": "value"})
    assert (tmp_path / "a.pt2").read_bytes() == found.data and found.before is None
    extra = {"metadata.json": ""}
    program = torch.export.load(io.BytesIO(found.data), extra_files=extra)
    assert json.loads(extra["metadata.json"]) == {"key": "value"}
    tensors = program.state_dict.values()
    rounded = [tensor for tensor in tensors if tensor.dtype == torch.int8]
    weights = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    assert sorted(t.numel() for t in rounded) == sorted(w.numel() for w in weights)
    assert max(t.numel() for t in tensors if t.is_floating_point()) <= 16  # biases and scales alone
    wanted = call(network, IMAGES)
    assert float((found.run(IMAGES) - wanted).norm() / wanted.norm()) < 0.05
    request = Request(network, (IMAGES[:1],), dynamic_batch=True)
    assert write_checked(Int8Pt2(found.data, found.run), request, tmp_path / "b.pt2").max_error < 0.05


def test_layers_that_lose_most_stay_in_float_and_are_named() -> None:
    torch.manual_seed(0)
    model = Outlier()
    wanted = call(model, IMAGES)

    def score(run: Any) -> float:
        return 100 - 100 * float((run(IMAGES) - wanted).norm() / wanted.norm())

    found = quantize_pt2(model, IMAGES[:1], [IMAGES], score=score, max_drop=5.0)
    assert found.before == pytest.approx(100, abs=0.01) and found.after is not None and found.after > 95
    assert "3" in found.in_float and len(found.in_float) <= 2
    state = torch.export.load(io.BytesIO(found.data)).state_dict
    assert torch.equal(state["3.weight"], model[3].weight) and "0.weight" not in state


class Fixed(nn.Module):
    """Takes batches of two only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.linear(images.reshape(2, 64))
        return out


def test_network_that_fixes_its_batch_size_is_run_in_parts() -> None:
    model = Fixed()
    found = quantize_pt2(model, IMAGES[:2], [IMAGES])
    wanted = torch.cat([call(model, IMAGES[i : i + 2]) for i in (0, 2, 4)])[:5]
    assert float((found.run(IMAGES[:5]) - wanted).norm() / wanted.norm()) < 0.05
    with pytest.raises(FixedBatchError, match="Fixed fixes its batch size"):
        quantize_pt2(model, IMAGES[:2], [IMAGES], dynamic_batch=True)


def test_failures_say_what_failed_and_write_nothing(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt2"
    with pytest.raises(ExportError, match="no convolution and no linear layer"):
        quantize_pt2(nn.ReLU(), IMAGES[:1], [IMAGES], path)
    with pytest.raises(InputError, match="and there are none"):
        quantize_pt2(network, IMAGES[:1], [], path)

    def fail(*args: Any) -> None:
        raise ValueError("no ranges today")

    with monkeypatch.context() as patch:
        patch.setattr(torchao, "_torchao", lambda: (fail, fail, None))
        with pytest.raises(ExportError, match="torchao cannot quantise the network: ValueError: no ranges today"):
            quantize_pt2(network, IMAGES[:1], [IMAGES], path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(NotInstalledError, match=r"torchao is needed to write \.pt2 files in int8"):
        quantize_pt2(network, IMAGES[:1], [IMAGES], path)
    assert not list(tmp_path.iterdir())
