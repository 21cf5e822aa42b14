"""What a layer reads, as rows: one for each position of its output, one column for each weight of a filter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from depl0.search.recovery.calls import LayerCall

ROWS = 65_536
"""rows that a layer's statistics are taken from at most, over all batches"""
ELEMENTS = 20_000_000
"""numbers in those rows, unless that would be too few rows to fit so many weights"""


def rows_for(columns: int) -> int:
    """Return how many rows are looked at for so many columns: enough for each weight, and not much more.

    >>> rows_for(144), rows_for(576), rows_for(4608)
    (65536, 34722, 36864)
    """
    return max(8 * columns, min(ROWS, ELEMENTS // columns))


def patches(call: LayerCall, places: Tensor) -> Tensor:
    """Return (images · places, inputs · kernel positions): what each of these output places is computed from.

    ``places`` are positions in the flattened output of one image; for a linear layer, rows of its input.
    """
    x = _precise(call.input.detach())
    if call.kind == "linear":
        return x.reshape(-1, x.shape[-1])[places.to(x.device)]
    kernel = call.given["weight"].shape[2:]
    x, index = _padded_and_index(call, x, kernel)
    taken = index[places].to(x.device)  # (places, kernel positions)
    read = x.flatten(2).index_select(2, taken.flatten()).reshape(*x.shape[:2], *taken.shape)
    return read.transpose(1, 2).reshape(x.shape[0] * len(places), -1)


def by_channels(rows: Tensor, kernel: int) -> Tensor:
    """Return (rows · kernel positions, channels): every position of the kernel becomes a row of its own."""
    return rows.reshape(len(rows), -1, kernel).transpose(1, 2).flatten(0, 1)


def outputs_at(tensor: Tensor, call: LayerCall, places: Tensor) -> Tensor:
    """Return (images · places, outputs) of a tensor that has the shape of the layer's output."""
    tensor = _precise(tensor.detach())
    if call.kind == "linear":
        return tensor.reshape(-1, tensor.shape[-1])[places.to(tensor.device)]
    tensor = _batched(tensor, call)
    read = tensor.flatten(2)[:, :, places.to(tensor.device)]
    return read.transpose(1, 2).reshape(-1, tensor.shape[1])


def choose_places(call: LayerCall, rows: int, seed: int) -> Tensor:
    """Choose output places at random, so that a batch gives about so many rows; the same ones for the same seed."""
    rng = torch.Generator().manual_seed(seed)
    if call.kind == "linear":
        count, per_place = call.input[..., 0].numel(), 1
    else:
        weight = call.given["weight"]
        x = _batched(call.input, call)
        count = math.prod(_output_sizes(call, x.shape[2:], weight.shape[2:]))
        per_place = max(x.shape[0], 1)
    wanted = max(1, rows // per_place)
    return torch.arange(count) if wanted >= count else torch.randperm(count, generator=rng)[:wanted].sort().values


def _precise(x: Tensor) -> Tensor:
    """Return at least float32: squares of half precision are none."""
    return x if x.dtype == torch.float64 else x.float()


def _batched(x: Tensor, call: LayerCall) -> Tensor:
    return x.unsqueeze(0) if x.dim() == call.given["weight"].dim() - 1 else x


def _setting(call: LayerCall, name: str, default: int, count: int) -> list[int]:
    value = call.given.get(name, default)
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _paddings(call: LayerCall, kernel: Sequence[int]) -> list[tuple[int, int]]:
    padding = call.given.get("padding", 0)
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(_setting(call, "dilation", 1, len(kernel)), kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in _setting(call, "padding", 0, len(kernel))]


def _output_sizes(call: LayerCall, sizes: Sequence[int], kernel: Sequence[int]) -> list[int]:
    strides, dilations = _setting(call, "stride", 1, len(kernel)), _setting(call, "dilation", 1, len(kernel))
    return [
        (size + before + after - d * (k - 1) - 1) // s + 1
        for size, (before, after), k, s, d in zip(
            sizes, _paddings(call, kernel), kernel, strides, dilations, strict=True
        )
    ]


def _padded_and_index(call: LayerCall, x: Tensor, kernel: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the padded input, and for each output place the flat positions that its kernel covers."""
    x = _batched(x, call)
    sizes = _output_sizes(call, x.shape[2:], kernel)
    strides, dilations = _setting(call, "stride", 1, len(kernel)), _setting(call, "dilation", 1, len(kernel))
    paddings = _paddings(call, kernel)
    if any(before or after for before, after in paddings):
        x = F.pad(x, [side for pair in reversed(paddings) for side in pair])
    places, offsets = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    for size, k, stride, dilation, length in zip(sizes, kernel, strides, dilations, x.shape[2:], strict=True):
        places = (places[:, None] * length + torch.arange(size) * stride).flatten()
        offsets = (offsets[:, None] * length + torch.arange(k) * dilation).flatten()
    return x, places[:, None] + offsets
