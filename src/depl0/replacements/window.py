"""Self-attention in shifted windows of an image (Swin, Swin V2), of any width.

torchvision's code computes sizes and scale of the heads from the width of the input. :class:`PrunedWindowAttention`
takes the place of such a module in a compact network, with the same parameters under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.replacements.attention import AttentionSpec, SelfAttention
from depl0.replacements.base import replace_module

_SETTINGS = ("window_size", "shift_size", "attention_dropout", "dropout")


@final
class PrunedWindowAttention(nn.Module):
    """Attention in windows whose heads have lost places of queries and keys, or of values."""

    relative_position_index: Tensor

    def __init__(self, module: nn.Module, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        for name, parameter in module._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in module._buffers.items():
            self.register_buffer(name, buffer, name not in module._non_persistent_buffers_set)
        for name, child in module._modules.items():
            self.register_module(name, child)
        known = vars(module)
        self.window_size, self.shift_size = list(known["window_size"]), list(known["shift_size"])
        self.attention_dropout, self.dropout = float(known["attention_dropout"]), float(known["dropout"])
        self.num_heads, self.value_dim = spec.heads, spec.head_dim
        self.measure()
        self.train(module.training)

    def measure(self) -> None:
        """Take the width of the values from the layer that reads them."""
        self.value_dim = int(self.get_parameter("proj.weight").shape[1]) // self.spec.heads

    def forward(self, x: Tensor) -> Tensor:
        """Attend as the module in whose place this is: (batch, height, width, channels) in and out."""
        bias = self._position_bias()
        batch, height, width = x.shape[:3]
        down, across = self.window_size
        x = F.pad(x, (0, 0, 0, -width % across, 0, -height % down))
        rows, columns = x.shape[1] // down, x.shape[2] // across
        shift = [0 if window >= size else by
                 for window, size, by in zip(self.window_size, x.shape[1:3], self.shift_size, strict=True)]  # fmt: skip
        if any(shift):
            x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
        windows = x.unflatten(2, (columns, across)).unflatten(1, (rows, down)).transpose(2, 3)
        mask = self._regions(x, shift) if any(shift) else None
        attended = self._attend(windows.flatten(3, 4).flatten(0, 2), bias, mask)  # (windows, places, channels)
        x = attended.unflatten(0, (batch, rows, columns)).unflatten(3, (down, across))
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if any(shift):
            x = torch.roll(x, (shift[0], shift[1]), (1, 2))
        return x[:, :height, :width].contiguous()

    def _attend(self, x: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
        qkv, proj = self.get_submodule("qkv"), self.get_submodule("proj")
        weight: Tensor = qkv.weight  # type: ignore[assignment]
        values = self.spec.heads * self.value_dim
        rest = (len(weight) - values) // 2
        parts = F.linear(x, weight, self._bias(qkv.bias, rest)).split([rest, rest, values], -1)  # type: ignore[arg-type]
        q, k, v = (part.unflatten(-1, (self.spec.heads, -1)).transpose(1, 2) for part in parts)
        if self.spec.form == "cosine windows":
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
            scores = scores * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()  # type: ignore[arg-type]
        else:
            scores = (q * self.spec.scale) @ k.transpose(-2, -1)
        scores = scores + bias
        if mask is not None:
            scores = (scores.unflatten(0, (-1, len(mask))) + mask.unsqueeze(1)).flatten(0, 1)
        weights = F.dropout(torch.softmax(scores, -1), self.attention_dropout, self.training)
        attended = (weights @ v).transpose(1, 2).flatten(2)
        return F.dropout(F.linear(attended, proj.weight, proj.bias), self.dropout, self.training)  # type: ignore[arg-type]

    def _bias(self, bias: Tensor | None, keys: int) -> Tensor | None:
        """Return the bias of queries, keys and values; where attention is by angle, keys have none."""
        if bias is None or self.spec.form != "cosine windows":
            return bias
        return torch.cat([bias[:keys], torch.zeros_like(bias[:keys]), bias[2 * keys :]])

    def _position_bias(self) -> Tensor:
        """Return what the distance of two places adds to their score, (1, heads, places, places)."""
        places = math.prod(self.window_size)
        if self.spec.form == "cosine windows":
            table = self.get_submodule("cpb_mlp")(self.relative_coords_table).view(-1, self.spec.heads)
        else:
            table = self.relative_position_bias_table
        bias = table[self.relative_position_index].view(places, places, -1).permute(2, 0, 1).unsqueeze(0)
        return 16 * torch.sigmoid(bias) if self.spec.form == "cosine windows" else bias

    def _regions(self, x: Tensor, shift: list[int]) -> Tensor:
        """Return what keeps places apart that a shift has brought into one window, (windows, places, places)."""
        (down, across), (height, width) = self.window_size, x.shape[1:3]
        rows = self._parts(height, down, shift[0], x.device)
        number = 3 * rows.unsqueeze(1) + self._parts(width, across, shift[1], x.device)
        number = number.unflatten(1, (-1, across)).unflatten(0, (-1, down)).transpose(1, 2)
        number = number.flatten(2, 3).flatten(0, 1)  # (windows, places)
        return torch.where(number.unsqueeze(1) == number.unsqueeze(2), 0.0, -100.0).to(x.dtype)

    @staticmethod
    def _parts(size: int, window: int, by: int, device: torch.device) -> Tensor:
        """Number the places along one side: those before the last window, those in it, and those from the other end."""
        steps = torch.arange(size, device=device)
        return (steps >= size - window).long() + (steps >= size - by).long() if by else torch.zeros_like(steps)

    def extra_repr(self) -> str:
        """Say how wide the heads are."""
        return f"heads={self.spec.heads}, values={self.value_dim} of {self.spec.head_dim}, windows={self.window_size}"


def rebuild_window_attention(network: nn.Module, path: str, given: dict[str, Any]) -> None:
    """Put attention in windows of any width in the place of a dense module."""
    replace_module(network, path, PrunedWindowAttention(network.get_submodule(path), AttentionSpec(**given)))


@final
class WindowReplacement(SelfAttention):
    """Attention in windows of an image."""

    kind: ClassVar[str] = "window_attention"
    module_type: ClassVar[type[Any]] = PrunedWindowAttention
    exported = (AttentionSpec, PrunedWindowAttention, rebuild_window_attention)
    rebuild = rebuild_window_attention

    @classmethod
    def described(cls, module: nn.Module) -> AttentionSpec | None:
        """Return what a module would have to compute, if it has the parts of torchvision's attention."""
        known, parts = vars(module), dict(module.named_children())
        heads, sizes = known.get("num_heads"), [known.get(name) for name in _SETTINGS]
        qkv, proj = parts.get("qkv"), parts.get("proj")
        if type(qkv) is not nn.Linear or type(proj) is not nn.Linear or not isinstance(heads, int) or heads < 1:
            return None
        if not all(_is_pair(size) for size in sizes[:2]) or not all(isinstance(p, (int, float)) for p in sizes[2:]):
            return None
        if not isinstance(module._buffers.get("relative_position_index"), Tensor):
            return None
        head_dim, rest = divmod(proj.in_features, heads)
        if rest or qkv.out_features != 3 * proj.in_features:
            return None
        names = {*parts, *module._parameters} - {"qkv", "proj"}
        if names == {"relative_position_bias_table"}:
            return AttentionSpec("windows", heads, head_dim, head_dim**-0.5)
        if names == {"cpb_mlp", "logit_scale"} and isinstance(module._buffers.get("relative_coords_table"), Tensor):
            return AttentionSpec("cosine windows", heads, head_dim, 1.0)
        return None

    @classmethod
    def inputs(cls, module: nn.Module, spec: AttentionSpec) -> Iterator[tuple[tuple[int, ...], int]]:
        """Give an image of several windows, not all of them full, and one of one window."""
        down, across = vars(module)["window_size"]
        yield (2, 2 * down + 1, 3 * across), 1
        yield (1, down, across), 1

    @classmethod
    def batch_and_length(cls, shape: tuple[int, ...], spec: AttentionSpec, module: nn.Module) -> tuple[int, int]:
        """Return the number of windows, and the places in one."""
        sizes = list(zip(shape[1:3], vars(module)["window_size"], strict=True))
        windows = math.prod(-(-size // window) for size, window in sizes)
        return shape[0] * windows, math.prod(window for _, window in sizes)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(type(size) is int for size in value)
