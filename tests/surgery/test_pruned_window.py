"""Attention in shifted windows (Swin, Swin V2): recognised, pruned at any size, trained on, saved and deployed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnxruntime
import pytest
import torch
from tests.support.compare import call, distance, liven, pruned, random_gates, same_cost
from tests.torchvision_shim import import_torchvision
from torch import Tensor, nn

import depl0
from depl0.export import export_onnx
from depl0.replacements.attention import AttentionSpec
from depl0.replacements.window import PrunedWindowAttention, WindowReplacement

import_torchvision()
from torchvision.models import swin_transformer as swin  # noqa: E402

pytestmark = pytest.mark.structures

KINDS = {"windows": swin.ShiftedWindowAttention, "cosine windows": swin.ShiftedWindowAttentionV2}
EVERY = pytest.mark.parametrize("kind", KINDS)
X = torch.randn(1, 9, 7, 5, generator=torch.Generator().manual_seed(3))


def attention(kind: str, shift: list[int]) -> nn.Module:
    torch.manual_seed(0)
    module = KINDS[kind](12, [4, 2], shift, 3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return module.eval()


class Windows(nn.Module):
    """Two blocks, one of them shifted, over a map of any size."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.into, self.first, self.second = nn.Linear(5, 12), attention(kind, [0, 0]), attention(kind, [2, 1])
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(3))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        x = x + self.first(self.norms[0](x))
        x = x + self.second(self.norms[1](x))
        return self.head(self.norms[2](x).mean((1, 2)))


@EVERY
@pytest.mark.parametrize("shift", [[0, 0], [2, 1], [0, 1]])
def test_is_recognised_by_what_it_computes(kind: str, shift: list[int]) -> None:
    module = attention(kind, shift)
    assert WindowReplacement.recognise(module) == AttentionSpec(kind, 3, 4, 0.5 if kind == "windows" else 1.0)
    spec = WindowReplacement.recognise(module)
    other = PrunedWindowAttention(module, spec)
    for height, width in ((8, 6), (9, 7), (4, 2), (3, 1), (4, 8)):
        x = torch.randn(2, height, width, 12)
        assert distance(call(module, x), call(other, x)) < 1e-5
    assert other.state_dict().keys() == module.state_dict().keys()


class OtherScale(swin.ShiftedWindowAttention):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_what_computes_something_else_is_left_alone() -> None:
    assert WindowReplacement.recognise(OtherScale(12, [2, 2], [0, 0], 3)) is None


@EVERY
def test_every_width_goes_exactly(kind: str, tmp_path: Path) -> None:
    host = liven(Windows(kind), X).double()
    gated, compact = pruned(host, X.double())
    assert {type(compact.first), type(compact.second)} == {PrunedWindowAttention}
    assert type(host.first) is KINDS[kind]
    assert depl0.info(compact).certificate.covered[-1] == "training mode"
    names = [group.name for group in gated.plan.groups]
    assert {"into", "first.qkv", "first.qkv.values", "second.qkv", "second.qkv.values"} <= set(names)
    assert gated.plan.least() < 0.15 and not any("attn" in reason for reason in gated.plan.unprunable())
    for shape in ((1, 9, 7, 5), (3, 8, 8, 5), (2, 4, 2, 5)):
        x = torch.randn(*shape, dtype=torch.float64)
        assert distance(call(gated, x), call(compact, x)) < 1e-12
    assert same_cost(gated.kept_cost(), depl0.cost(compact, X.double()))
    loaded = depl0.load(depl0.save(compact, tmp_path / "small"), lambda: Windows(kind).double()).eval()
    assert torch.equal(call(loaded, X.double()), call(compact, X.double()))


@EVERY
def test_trained_on_cut_again_and_deployed(kind: str, tmp_path: Path) -> None:
    gated = depl0.attach(liven(Windows(kind), X), X).eval()
    gates = random_gates(gated.plan.num_gates, 1)
    gated.engine.close(gates == 0)
    wanted = call(gated, X)
    gated.engine.shrink()
    assert type(gated.host.first) is PrunedWindowAttention and distance(wanted, call(gated, X)) < 1e-5
    gated.engine.fix_gates(torch.where(random_gates(gated.plan.num_gates, 2) == 0, 0.0, gates))
    compact = gated.extract()
    compact.train()(X).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in compact.first.qkv.parameters())
    session = onnxruntime.InferenceSession(export_onnx(compact.eval(), X, tmp_path / "compact.onnx"))
    other = torch.randn(1, 9, 7, 5)
    found = torch.from_numpy(session.run(None, {"input": other.numpy()})[0])
    assert distance(call(compact, other), found) < 1e-5
    again, smaller = pruned(compact, X, seed=4)
    assert distance(call(again, other), call(smaller, other)) < 1e-5


def test_whole_networks() -> None:
    make = partial(swin.SwinTransformer, [4, 4], 16, [2, 2], [2, 4], [2, 2], num_classes=3)
    for options in ({}, {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}):
        torch.manual_seed(0)
        x = torch.randn(1, 3, 32, 32)
        gated, compact = pruned(liven(make(**options), x), x)
        assert gated.plan.least() < 0.01
        assert "attention modules are replaced where they lose channels (PrunedWindowAttention)" in str(gated.plan)
        assert depl0.info(compact).certificate.covered[-1] == "training mode"
