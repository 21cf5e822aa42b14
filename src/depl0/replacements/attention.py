"""Self-attention of any width: of its input and output, of queries and keys, and of values.

The code of attention modules takes one of these widths for another, or computes its scale from them.
:class:`PrunedAttention` takes the place of such a module in a compact network, with the same parameters under the same
names, and with the scale of the dense network as a number. Every head loses the same places.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = Literal["torch", "timm", "windows", "cosine windows"]
"""``nn.MultiheadAttention`` on one input; modules with linear layers ``qkv`` and ``proj``, as timm's; attention in
shifted windows, as torchvision's Swin; the same by the angle between queries and keys, as its Swin V2"""


@dataclass(frozen=True)
class AttentionSpec:
    """What a self-attention module computes."""

    form: Form
    heads: int
    head_dim: int
    scale: float

    @property
    def weight(self) -> str:
        """Return the parameter that gives queries, keys and values, in that order, head by head."""
        return "in_proj_weight" if self.form == "torch" else "qkv.weight"

    @property
    def bias(self) -> str:
        """Return its bias, which need not be there."""
        return "in_proj_bias" if self.form == "torch" else "qkv.bias"

    @property
    def out(self) -> str:
        """Return the layer that reads the heads."""
        return "out_proj" if self.form == "torch" else "proj"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AttentionSpec:
        """Read plain data back; a ValueError says what is wrong."""
        spec = cls(**data)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (spec.heads, spec.head_dim))
        if spec.form not in get_args(Form) or not whole or not isinstance(spec.scale, float):
            raise ValueError(f"{str(data)[:100]} describes no attention")
        return spec


@final
class PrunedAttention(nn.Module):
    """Self-attention whose heads have lost places of queries and keys, or of values."""

    batch_first: bool
    _qkv_same_embed_dim = False  # what keeps nn.TransformerEncoderLayer from its fused form, which knows one width only

    def __init__(self, module: nn.Module, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        for name, parameter in module._parameters.items():
            self.register_parameter(name, parameter)
        for name, child in module._modules.items():
            self.register_module(name, child)
        self.num_heads = spec.heads
        self.batch_first = spec.form == "timm" or bool(module.batch_first)
        self.dropout = float(module.dropout) if spec.form == "torch" else 0.0  # type: ignore[arg-type]
        self.value_dim = spec.head_dim
        self.measure()
        self.train(module.training)

    def measure(self) -> None:
        """Take the width of the values from the layer that reads them."""
        self.value_dim = int(self.get_parameter(f"{self.spec.out}.weight").shape[1]) // self.spec.heads

    def forward(self, query: Tensor, *others: Any, **options: Any) -> Any:
        """Attend as the module in whose place this is, called in the same way."""
        if self.spec.form == "timm":
            return self._like_timm(query, *others, **options)
        return self._like_torch(query, *others, **options)

    def _like_timm(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        qkv, dropout, proj, last = (self._modules[name] for name in ("qkv", "attn_drop", "proj", "proj_drop"))
        assert qkv is not None and isinstance(dropout, nn.Dropout) and proj is not None and last is not None
        result: Tensor = last(proj(self._attend(qkv(x), attn_mask, dropout.p, is_causal)))
        return result

    def _like_torch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if key is not query or value is not query:
            raise ValueError("a pruned attention reads one input: query, key and value must be the same tensor.")
        x = query if query.dim() == 3 else query.unsqueeze(0)
        turned = query.dim() == 3 and not self.batch_first
        x = x.transpose(0, 1) if turned else x
        mask = self._mask(x, key_padding_mask, attn_mask)
        rows = F.linear(x, self.in_proj_weight, self.in_proj_bias)  # type: ignore[arg-type]
        weights: Tensor | None = None
        if need_weights:
            attended, weights = self._attend_by_hand(rows, mask)
        else:
            attended = self._attend(rows, mask, self.dropout, False)
        result = self.get_submodule("out_proj")(attended)
        result = result.transpose(0, 1) if turned else result
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.dim() == 3:
            return result, weights
        return result.squeeze(0), None if weights is None else weights.squeeze(0)

    def _mask(self, x: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Return both masks as what is added to the scores."""
        total: Tensor | None = None
        batch, length = x.shape[:2]
        if mask is not None:
            total = _additive(mask, x)
            total = total.view(batch, self.spec.heads, length, length) if total.dim() == 3 else total
        if padding is not None:
            added = _additive(padding, x).view(batch, 1, 1, length)
            total = added if total is None else total + added
        return total

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn (batch, length, rows of all heads) into queries, keys and values, each (batch, heads, length, dim)."""
        heads, values = self.spec.heads, self.spec.heads * self.value_dim
        rest = (rows.shape[-1] - values) // 2
        parts = rows.split([rest, rest, values], dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        return q, k, v

    def _attend(self, rows: Tensor, mask: Tensor | None, dropout: float, is_causal: bool) -> Tensor:
        q, k, v = self._split(rows)
        dropout = dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale=self.spec.scale)
        return attended.transpose(1, 2).flatten(2)

    def _attend_by_hand(self, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the weights give, and the weights, (batch, heads, length, length)."""
        q, k, v = self._split(rows)
        scores = (q * self.spec.scale) @ k.transpose(-2, -1)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, self.dropout, self.training)
        return (weights @ v).transpose(1, 2).flatten(2), weights

    def extra_repr(self) -> str:
        """Say how wide the heads are."""
        return f"heads={self.spec.heads}, values={self.value_dim} of {self.spec.head_dim}, scale={self.spec.scale:.4g}"


def _additive(mask: Tensor, x: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(x.dtype)
    return torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask, float("-inf"))


def described(module: nn.Module) -> AttentionSpec | None:
    """Return what a module would have to compute, by its parts."""
    if type(module) is nn.MultiheadAttention:
        plain = module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
        return AttentionSpec("torch", module.num_heads, module.head_dim, module.head_dim**-0.5) if plain else None
    parts = dict(module.named_children())
    if module._parameters or not {"qkv", "proj", "attn_drop", "proj_drop"} <= parts.keys():
        return None
    heads = getattr(module, "num_heads", None)
    qkv, proj, known = parts["qkv"], parts["proj"], (nn.Dropout, nn.Identity)
    if type(qkv) is not nn.Linear or type(proj) is not nn.Linear or not isinstance(heads, int):
        return None
    if any(type(part) not in known for name, part in parts.items() if name not in {"qkv", "proj"}):
        return None
    if type(parts["attn_drop"]) is not nn.Dropout or qkv.out_features != 3 * proj.in_features:
        return None
    head_dim = proj.in_features // heads
    scale = getattr(module, "scale", None)
    scale = scale if isinstance(scale, float) else head_dim**-0.5
    return AttentionSpec("timm", heads, head_dim, scale) if head_dim * heads == proj.in_features else None
