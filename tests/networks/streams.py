"""Structures of residual streams, and modules that read all channels: norms, attention, experts, CBAM and ECA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.structures import Classifier, conv, structure

TOKENS = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(3))


@structure(
    {"patches": 8, "mlp.0": 16},
    sites={("token", 2), ("places", 1), ("patches.weight", 0), ("norm.weight", 0), ("norm.bias", 0)},
)
class TokenStream(nn.Module):
    """A class token before the patches, a learned position added to both, and a layer norm before what reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(5, 8))
        self.norm, self.last = nn.LayerNorm(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.last(x + self.mlp(self.norm(x)))[:, 0])


class RmsByHand(nn.Module):
    """The norm of most language models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@structure(
    {"embed": 8, "gate": 12}, inputs=torch.randint(0, 9, (2, 6)), sites={("embed.weight", 1), ("back.weight", 0)}
)
class EmbeddedStream(nn.Module):
    """Root-mean-square norms, torch's own and one by hand, over embedded tokens; a gated MLP, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.last = nn.Embedding(9, 8), nn.RMSNorm(8), RmsByHand(8)
        self.gate, self.up, self.back = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        y = self.norm(x)
        return self.head(self.last(x + self.back(F.silu(self.gate(y)) * self.up(y))))


class RmsLessOne(RmsByHand):
    """Gemma's: its weights are what the scale has more than one."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.weight)


class RmsInFloat(RmsByHand):
    """The same, in float32 whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


@structure({"places": 8, "one": 12}, inputs=torch.randint(0, 9, (2, 6)), sites={("places.weight", 1)})
class FloatStream(nn.Module):
    """Llama's norms, and positions that are looked up by a buffer of their numbers, as in CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(9, 8), nn.Embedding(9, 8)
        self.norm, self.last = RmsInFloat(8), RmsInFloat(8)
        self.one, self.two, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)
        self.register_buffer("numbers", torch.arange(9))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.places(self.numbers[: tokens.shape[1]]) + self.embed(tokens)
        return self.head(self.last(x + self.two(F.silu(self.one(self.norm(x))))))


class ResponseNorm(nn.Module):
    """The global response norm of ConvNeXt V2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = (nn.Parameter(torch.randn(1, 1, 1, width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        response = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * (response / (response.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x


class NormOverSecond(nn.LayerNorm):
    """A layer norm for images."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


@structure({"stem": 6, "wide": 10}, sites={("stem.weight", 0), ("norm.weight", 0), ("response.beta", 3)})
class ImageStream(Classifier):
    """Layer norms over the second dimension, one of them without parameters, and a global response norm."""

    def __init__(self) -> None:
        super().__init__(6)
        self.stem, self.norm = conv(3, 6), NormOverSecond(6)
        self.wide, self.response, self.back = nn.Linear(6, 10), ResponseNorm(10), nn.Linear(10, 6)
        self.plain = NormOverSecond(6, elementwise_affine=False)
        self.last = conv(6, 6)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(x).permute(0, 2, 3, 1)
        y = self.back(self.response(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)
        return x + self.last(self.plain(x + y))


@structure({"two": 12}, inputs=TOKENS, unprunable={"one": "a norm over channels that cannot be made zero (at norm)"})
class NormBehindSigmoid(nn.Module):
    """A closed channel is one half when it comes into the norm, whatever its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.two(self.norm(torch.sigmoid(self.one(x))))))


class FusedAttention(nn.Module):
    """Queries, keys and values from one layer, as in timm, with everything sized by numbers."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = 2, 4, scale
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.attn_drop, self.proj_drop = nn.Dropout(0.1), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(-1))
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).reshape(batch, length, 8)))


@structure(
    {"into": 8, "one.qkv": 4, "one.qkv.values": 4, "two.qkv": 4, "two.qkv.values": 4}, inputs=torch.randn(2, 6, 5)
)
class FusedAttentions(nn.Module):
    """Scores that are scaled as usual, and otherwise: the scale of the dense network stays."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.head = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.one, self.two = FusedAttention(0.5), FusedAttention(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        x = x + self.one(self.norm(x))
        return self.head(x + self.two(x))


class NormalisedQueries(FusedAttention):
    """Has the parts of an attention that is known, and does something else with them."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (F.normalize(q, dim=-1) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, 8))


@structure({"into": 8}, inputs=torch.randn(2, 6, 5), unprunable={"attention.qkv": "over channels"})
class LooksLikeAttention(nn.Module):
    """What gives other values is not attention, whatever its parts; the stream around it can go all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.attention, self.head = nn.Linear(5, 8), NormalisedQueries(0.5), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        return self.head(x + self.attention(x))


# -- experts: layers whose weights are picked from a stack -----------------------------------------------------------


@structure({"into": 8, "up": 6}, inputs=TOKENS, unprunable={"router": "argmax"})
class Experts(nn.Module):
    """Every token goes through the layers of one expert, whose weights are turned, cast or neither."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.router, self.head = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.up, self.down = nn.Parameter(torch.randn(3, 12, 8) / 3), nn.Parameter(torch.randn(3, 8, 6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x).flatten(0, 1)
        chosen = F.linear(x, self.router.weight.to(x.dtype), self.router.bias).argmax(-1)
        gate, up = torch.bmm(self.up[chosen], x.unsqueeze(-1)).squeeze(-1).chunk(2, -1)
        x = x + torch.bmm((F.silu(gate) * up).unsqueeze(1), self.down[chosen].transpose(1, 2)).squeeze(1)
        return self.head(x)


@structure({"into": 8, "up": 6}, inputs=TOKENS, unprunable={"router": "topk"})
class SeveralExperts(nn.Module):
    """Every token goes through two experts, then all tokens through the first and a place that is picked."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.router, self.head = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.up, self.down = nn.Parameter(torch.randn(3, 6, 8) / 3), nn.Parameter(torch.randn(3, 8, 6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        share, chosen = self.router(x).topk(2, -1)
        up = F.relu(self.up[chosen] @ x[:, :, None, :, None])  # (batch, tokens, experts, units, 1)
        x = x + ((self.down[chosen] @ up).squeeze(-1) * share.unsqueeze(-1)).sum(2)
        x = x + F.linear(F.relu(F.linear(x, self.up[0])), self.down[0])
        return self.head(x[torch.arange(x.shape[0]), share[..., 0].argmax(-1)])


# -- small modules that look at all channels at once: a mean, a maximum, a convolution along channels -----------------


class SpatialAttention(nn.Module):
    """The second half of CBAM: where to look, from the mean and the maximum over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        summary = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        return x * torch.sigmoid(self.conv(summary))


class AttentionMap(SpatialAttention):
    """The same, as a map that others multiply by."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)))


class ChannelNeighbours(nn.Module):
    """ECA: a factor for each channel, from its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.mean((2, 3)).unsqueeze(1)).squeeze(1)
        return x * torch.sigmoid(y)[:, :, None, None]


@structure(
    {"stem": 8, "two": 6},
    sites={("norm.weight", 0), ("last.weight", 0)},
    unprunable={"where.conv": "is run with all channels (at where)", "near.conv": "is run with all channels"},
)
class AttendsToChannels(Classifier):
    """CBAM and ECA in a residual network: zeros before them stand for channels that are gone."""

    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.norm, self.where = conv(3, 8), nn.BatchNorm2d(8), SpatialAttention()
        self.near, self.map, self.two, self.last = ChannelNeighbours(), AttentionMap(), conv(8, 6), conv(6, 8)

    def features(self, x: Tensor) -> Tensor:
        x = self.where(self.norm(self.stem(x)))
        y = F.relu(self.two(self.near(x)))
        return x + self.last(y * self.map(y))


class Centred(nn.Module):
    """What comes out at a closed channel is not zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)


@structure({"one": 8, "two": 6}, sites={("one.weight", 0), ("two.weight", 1)})
class CentresChannels(Classifier):
    """Gates silence what goes into the mean, and what is read behind it."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.centred, self.two = conv(3, 8), Centred(), conv(8, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(self.centred(self.one(x))))


@structure({"two": 6}, unprunable={"one": "mean over channels"})
class CentresInForward(CentresChannels):
    """There is no module that could be run at its full width."""

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return F.relu(self.two(x - x.mean(1, keepdim=True)))
