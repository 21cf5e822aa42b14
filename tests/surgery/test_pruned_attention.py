"""Attention whose widths are independent: called as torch's own, trained on, saved, deployed and counted."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from tests.support.compare import call, distance, pruned, random_gates, same_cost
from torch import Tensor, nn

import depl0
from depl0.export import export_onnx
from depl0.replacements.attention import AttentionReplacement, AttentionSpec, PrunedAttention

pytestmark = pytest.mark.structures

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


def both() -> tuple[nn.MultiheadAttention, PrunedAttention]:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    spec = AttentionReplacement.recognise(module)
    assert spec == AttentionSpec("torch", 2, 4, 0.5)
    return module, PrunedAttention(module, spec).eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": CAUSAL},
        {"attn_mask": CAUSAL, "key_padding_mask": PADDED},
        {"attn_mask": torch.randn(4, 5, 5), "need_weights": False},
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    ],
)
def test_is_called_as_torchs_own(options: dict[str, object]) -> None:
    module, pruned_one = both()
    (wanted, weights), (found, found_weights) = module(X, X, X, **options), pruned_one(X, X, X, **options)
    assert distance(wanted, found) < 1e-6
    assert (weights is None) == (found_weights is None)
    assert weights is None or distance(weights, found_weights) < 1e-6


def test_without_a_batch() -> None:
    module, pruned_one = both()
    x = X[0]
    assert distance(module(x, x, x), pruned_one(x, x, x)) < 1e-6


def test_another_key_is_refused() -> None:
    with pytest.raises(ValueError, match="reads one input"):
        both()[1](X, X.clone(), X)


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(8, 2, kdim=4, vdim=4),
        nn.MultiheadAttention(8, 2, add_bias_kv=True),
        nn.MultiheadAttention(8, 2, add_zero_attn=True),
        nn.Linear(8, 8),
    ],
)
def test_other_modules_are_not_taken_for_it(module: nn.Module) -> None:
    assert AttentionReplacement.recognise(module) is None


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.into(x)).mean(1))


def test_transformer_layer_trained_on_saved_and_deployed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 5, 6)
    gated = depl0.attach(Encoder(), x).eval()
    assert gated.plan.least() < 0.15
    assert "attention is replaced where it loses channels (PrunedAttention)" in str(gated.plan)
    gates = random_gates(gated.plan.num_gates, 1)
    gated.remove(gates == 0)
    wanted = call(gated, x)
    gated.cut()
    assert isinstance(gated.host.layer.self_attn, PrunedAttention) and distance(wanted, call(gated, x)) < 1e-6
    more = torch.where(random_gates(gated.plan.num_gates, 2) == 0, 0.0, gates)
    gated.fix_gates(more)
    compact = gated.extract().eval()
    assert same_cost(gated.kept_cost(), depl0.cost(compact, x))
    folder = depl0.save(compact, tmp_path / "compact")
    loaded = depl0.load(folder, Encoder).eval()
    other = torch.randn(1, 5, 6)
    assert torch.equal(call(compact, other), call(loaded, other))
    session = onnxruntime.InferenceSession(export_onnx(loaded, x, tmp_path / "compact.onnx"))
    assert distance(call(compact, other), torch.from_numpy(session.run(None, {"input": other.numpy()})[0])) < 1e-5
    again, smaller = pruned(compact, x, seed=4)
    assert distance(call(again, other), call(smaller, other)) < 1e-5


class Fused(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_fused_attention_is_counted() -> None:
    assert depl0.cost(nn.Sequential(nn.Linear(8, 8), Fused()), X).macs == 5 * 8 * 8 + 2 * (5 * 5 * 8)
