"""Structures of attention that is written out: heads, queries with keys, values; and groups that lose places."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.structures import Classifier, conv, structure

TOKENS = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(3))


class Attending(nn.Module):
    """Gives queries, keys and values of a stream, and reads what comes of them."""

    def __init__(self, keys: int = 12) -> None:
        super().__init__()
        self.into, self.norm, self.head = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.query, self.key, self.value = nn.Linear(8, 12), nn.Linear(8, keys), nn.Linear(8, keys)
        self.back = nn.Linear(12, 8)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        y = self.norm(x)
        return self.head(x + self.back(self.attend(self.query(y), self.key(y), self.value(y))))


def heads(x: Tensor, dim: int = 4) -> Tensor:
    """Split channels into as many heads of this size as there are."""
    return x.view(*x.shape[:2], -1, dim).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


@structure({"into": 8, "query": 3}, inputs=TOKENS, sites={("value.weight", 0), ("value.bias", 0)})
class Heads(Attending):
    """BERT's: the number of heads follows the layers; a closed head's values are zeros, its weights need not be."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(1, 3, 1, 1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = heads(q), heads(k), heads(v)
        past = torch.ones(6, 6).tril().log()
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.5 * self.slope + past, dim=-1)
        return joined(F.dropout(weights, 0.1, self.training) @ v)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


@structure({"into": 8, "query": 2}, inputs=TOKENS, sites={("value.weight", 0)})
class SharedKeys(Attending):
    """Llama's: two heads of queries have one of keys and values, and all are turned by their position."""

    def __init__(self) -> None:
        super().__init__(6)
        self.query, self.back = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)
        self.register_buffer("frequencies", torch.tensor([1.0]), persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = heads(q, 3)[..., :2], heads(k, 3)[..., :2], heads(v, 3)
        angles = (self.frequencies[None, :, None] @ torch.arange(6.0, dtype=q.dtype)[None, None, :]).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        q, k = turned(q, angles.cos(), angles.sin()), turned(k, angles.cos(), angles.sin())
        k, v = self.repeated(k), self.repeated(v)
        return joined(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.6))

    def repeated(self, x: Tensor) -> Tensor:
        batch, count, length, dim = x.shape
        return x[:, :, None].expand(batch, count, 2, length, dim).reshape(batch, 2 * count, length, dim)


@structure({"into": 8}, inputs=TOKENS, unprunable={"query": "meets a constant", "value": "meets a constant"})
class MaskOfHeads(Attending):
    """A mask that differs from head to head is no parameter, so it cannot follow them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.randn(1, 3, 6, 6))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return joined(F.scaled_dot_product_attention(heads(q), heads(k), heads(v), self.mask))


def places(x: Tensor) -> Tensor:
    """Split channels into three heads of any size."""
    return x.view(*x.shape[:2], 3, -1).transpose(1, 2)


@structure(
    {"into": 8, "query": 4, "value": 4},
    inputs=TOKENS,
    sites={("query.weight", 0), ("query.bias", 0), ("value.weight", 0)},
)
class PlacesOfHeads(Attending):
    """Queries and keys lose the same places of every head, values others; one zero of two is enough."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (places(q) @ places(k.sigmoid()).transpose(-2, -1) * 0.5).softmax(-1)
        return joined(weights @ places(v))


@structure({"into": 8, "value": 4}, inputs=TOKENS, unprunable={"query": "the scale of attention is computed from them"})
class FusedWithoutScale(Attending):
    """torch divides by the root of the number of places that it finds."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return joined(F.scaled_dot_product_attention(places(q), places(k), places(v)))


@structure({"into": 8, "value": 4}, inputs=TOKENS, unprunable={"query": "its number of channels changes the values"})
class ScaledByWidth(Attending):
    """The scale is computed from what is left, which a trial finds."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = places(q)
        weights = (q @ places(k).transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return joined(weights @ places(v))


@structure({"into": 8, "query": 6}, inputs=TOKENS)
class WidthOfKeys(Attending):
    """diffusers': values are split by the width of the keys, so both lose the same places."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size = k.shape[-1] // 2
        q, k, v = (x.view(x.shape[0], -1, 2, size).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, scale=0.5).transpose(1, 2).reshape(q.shape[0], -1, 2 * size)


# -- groups that lose places -----------------------------------------------------------------------------------------


@structure({"one": 4, "wide": 3, "two": 6}, sites={("wide.weight", 0), ("wide.bias", 0), ("one.weight", 0)})
class WideGroups(Classifier):
    """Two groups of four inputs: every group loses the same places, and there are two groups to the end."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.wide, self.two = conv(3, 8), conv(8, 6, groups=2), conv(6, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.wide(F.relu(self.one(x))))))
