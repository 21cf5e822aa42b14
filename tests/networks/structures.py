"""Small networks, one for every structure that the analysis has to get right, with what it must find in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Structure:
    """A network, what it is called with, and the plan it must get."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Any
    groups: Mapping[str, int]
    """name -> number of gates, in order of execution; empty: nothing may be prunable"""
    unprunable: Mapping[str, str] = field(default_factory=dict)
    """layer -> part of the reason why (some of) its channels are unprunable"""
    sites: frozenset[tuple[str, int]] | None = None
    """the axes that gates multiply, where that is the point of the structure"""


STRUCTURES: dict[str, Structure] = {}
OUTPUT = "reaches the network's output"


def image(channels: int = 3, size: int = 8, batch: int = 2) -> Tensor:
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(3))


def structure(
    groups: Mapping[str, int],
    inputs: Any = None,
    unprunable: Mapping[str, str] | None = None,
    sites: set[tuple[str, int]] | None = None,
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a network class."""

    def add(network: type[nn.Module]) -> type[nn.Module]:
        STRUCTURES[network.__name__] = Structure(
            network.__name__,
            network,
            image() if inputs is None else inputs,
            groups,
            unprunable or {},
            None if sites is None else frozenset(sites),
        )
        return network

    return add


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, **options)


class Classifier(nn.Module):
    """Pools what `features` gives, and classifies it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 4)

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x).mean((2, 3)))


class TwoConvs(Classifier):
    """The layers of most structures, which differ in how they connect them."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(8, 6)


# -- plain chains ----------------------------------------------------------------------------------------------------


@structure({"one": 8, "two": 6}, unprunable={"head": OUTPUT}, sites={("norm.weight", 0), ("norm.bias", 0),
                                                                ("two.weight", 0), ("two.bias", 0)})  # fmt: skip
class NormAfterConv(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two = conv(3, 8, bias=False), nn.BatchNorm2d(8), conv(8, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.one(x)))))


@structure({"one": 8, "two": 6}, sites={("one.weight", 0), ("one.bias", 0), ("two.weight", 0), ("two.bias", 0)})
class NoNorm(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.two(F.silu(self.one(x))))


@structure({"one": 8, "two": 6}, sites={("two.weight", 1), ("two.weight", 0), ("two.bias", 0)})
class SigmoidBetween(TwoConvs):
    """A closed channel is 0.5 behind a sigmoid: only the reader's input weights can silence it."""

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(torch.sigmoid(self.one(x))))


class NormAct(nn.BatchNorm2d):
    """A batch norm with its activation inside."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(x)) - 0.25


@structure({"one": 8, "two": 6}, sites={("two.weight", 1), ("head.weight", 1)})
class FusedNormSigmoid(Classifier):
    """Gated at its affine the channel would be 0.25, not 0: the reader is gated."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two, self.last = conv(3, 8), NormAct(8), conv(8, 6), NormAct(6)

    def features(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.norm(self.one(x))))


@structure({"one": 8, "two": 3}, inputs=torch.randn(3, 5))
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(5, 8), nn.Linear(8, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.two(F.gelu(self.one(x)))))


@structure({"into": 8, "mid": 6, "last": 5}, inputs=torch.randn(3, 4, 5), sites={("mid", 1), ("mid", 0), ("last", 1)})
class Products(nn.Module):
    """Products with stored matrices, as in GPT-2 and graph networks."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mid = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(8, 6) / 3)
        self.bias, self.last = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 5) / 3)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        adjacent = torch.softmax(x @ x.transpose(1, 2), -1)
        x = torch.sigmoid(F.relu(x @ self.into))
        y = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.mid)
        y = F.gelu(y).view(*x.shape[:-1], y.shape[-1])
        return self.head(F.relu(y @ self.last).mean(1)) + adjacent.mean((1, 2))[:, None]


@structure({"one": 8}, inputs=torch.randn(2, 3, 12))
class Conv1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Conv1d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.norm(self.one(x))))


@structure({"one": 4}, inputs=torch.randn(2, 2, 5, 5, 5))
class Conv3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.Conv3d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.norm(self.one(x))))


@structure({"one": 8, "two": 6})
class Resampled(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        x = F.interpolate(F.max_pool2d(F.relu(self.one(x)), 2), scale_factor=2, mode="bilinear")
        return F.avg_pool2d(F.interpolate(self.two(x), size=(5, 5)), 2)


@structure({"one": 8, "two": 6})
class Dropouts(TwoConvs):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.drop_channels = nn.Dropout(0.3), nn.Dropout2d(0.3)

    def features(self, x: Tensor) -> Tensor:
        return self.drop(self.two(self.drop_channels(F.relu(self.one(x)))))


# -- norms other than batch norm -----------------------------------------------------------------------------------


@structure({"one": 4, "two": 6})
class GroupNorms(Classifier):
    """Norm groups of two channels live or die as a whole."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two = conv(3, 8), nn.GroupNorm(4, 8), conv(8, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.one(x)))))


@structure({"one": 8, "two": 6})
class InstanceNorms(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two = conv(3, 8), nn.InstanceNorm2d(8, affine=True), conv(8, 6)
        self.plain = nn.InstanceNorm2d(6, track_running_stats=True)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.plain(self.two(F.relu(self.norm(self.one(x))))))


@structure({"one": 8, "two": 6})
class SlopePerChannel(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.act, self.two, self.single = conv(3, 8), nn.PReLU(8), conv(8, 6), nn.PReLU()

    def features(self, x: Tensor) -> Tensor:
        return self.single(self.two(self.act(self.one(x))))


@structure({"one": 8, "two": 6, "three": 5})
class LayerScale(Classifier):
    """Factors per channel as (C, 1, 1), as a vector that is reshaped, and as a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__(5)
        self.one, self.two, self.three = conv(3, 8), conv(8, 6), conv(6, 5)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.randn(6))
        self.register_buffer("unsaved", torch.rand(1, 5, 1, 1) + 0.5, persistent=False)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.two(self.scale * self.one(x))) + self.shift.view(1, -1, 1, 1)
        return self.three(x) * self.unsaved


# -- coupled channels ------------------------------------------------------------------------------------------------


@structure({"stem": 8, "one": 6})
class Residual(Classifier):
    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.one, self.two = conv(3, 8), conv(8, 6), conv(6, 8)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(6), nn.BatchNorm2d(8)])

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.stem(x)))
        return F.relu(x + self.norms[2](self.two(F.relu(self.norms[1](self.one(x))))))


@structure({"left": 5, "right": 7, "two": 6})
class Concat(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.left, self.right, self.two = conv(3, 5), conv(3, 7), conv(15, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(torch.cat([F.relu(self.left(x)), x, F.relu(self.right(x))], 1)))


@structure({"one": 8, "two": 6})
class Depthwise(Classifier):
    """Depthwise with a channel multiplier of two, then a reader."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.deep, self.norm = conv(3, 8), conv(8, 16, groups=8, bias=False), nn.BatchNorm2d(16)
        self.two = conv(16, 6, 1)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.deep(F.relu(self.one(x)))))))


@structure({"one": 4, "two": 6})
class Grouped(Classifier):
    """Four groups of two inputs and three outputs."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.grouped, self.two = conv(3, 8), conv(8, 12, groups=4), conv(12, 6, 1)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.grouped(F.relu(self.one(x))))))


@structure({"one": 4, "two": 6})
class GroupedTransposed(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(12, 6, 1)
        self.grouped = nn.ConvTranspose2d(8, 12, 2, stride=2, groups=4)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.grouped(F.relu(self.one(x))))))


@structure({"one": 8, "squeeze": 3, "two": 6})
class SqueezeExcite(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.squeeze, self.excite, self.two = conv(3, 8), conv(8, 3, 1), conv(3, 8, 1), conv(8, 6)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        factor = torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return F.relu(self.two(x * factor))


@structure({"one": 4, "two": 6})
class GatedLinearUnit(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(4, 6)

    def features(self, x: Tensor) -> Tensor:
        value, factor = self.one(x).chunk(2, dim=1)
        return F.relu(self.two(value * torch.sigmoid(factor)))


@structure({"one": 4, "two": 6})
class BuiltInGlu(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(4, 6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.glu(self.one(x), 1)))


@structure({"two": 6}, unprunable={"one": "split"})
class LiteralSplit(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.one(x)).split([3, 5], 1)
        return self.two(torch.cat([right, left], 1))


@structure({"one": 4, "two": 6})
class Maxout(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(4, 6)

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(x.view(x.shape[0], 2, -1, *x.shape[2:]).amax(1))


@structure({"left": 4, "two": 6})
class StackedBranches(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.left, self.right, self.two = conv(3, 4), conv(3, 4, 1), conv(4, 6)

    def features(self, x: Tensor) -> Tensor:
        x = torch.stack([self.left(x), self.right(x)], dim=1)
        return self.two((F.relu(x) * x.mean((3, 4), keepdim=True).softmax(1)).sum(1))


@structure({"one": 2, "two": 6})
class PixelShuffled(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        return self.two(F.pixel_unshuffle(F.relu(F.pixel_shuffle(self.one(x), 2)), 2))


class FrozenNorm(nn.Module):
    """As in detection backbones: four buffers and arithmetic."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width, generator=torch.Generator().manual_seed(len(name))) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


@structure({"one": 8, "two": 6}, sites={("two.weight", 1), ("head.weight", 1)})
class FrozenBatchNorm(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.first, self.two, self.second = conv(3, 8), FrozenNorm(8), conv(8, 6), FrozenNorm(6)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.two(F.relu(self.first(self.one(x))))))


@structure({"one": 4, "two": 6})
class ChannelShuffle(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        n, c, h, w = x.shape
        return self.two(x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w))


@structure({"one": 4, "two": 6})
class BuiltInShuffle(TwoConvs):
    def features(self, x: Tensor) -> Tensor:
        return self.two(F.channel_shuffle(F.relu(self.one(x)), 2))


@structure({"stem": 8})
class CalledTwice(Classifier):
    """The stream's convolution runs twice: its inputs and outputs are the same channels."""

    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.again = conv(3, 8), conv(8, 8)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return F.relu(self.again(F.relu(self.again(x))))


@structure({"one": 8, "two": 6}, inputs=(image(), image()))
class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = conv(3, 8), conv(3, 8)
        self.other.weight = self.one.weight
        self.two, self.head, self.head2 = conv(8, 6), nn.Linear(6, 4), nn.Linear(6, 4)
        self.head2.weight = self.head.weight

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.two(F.relu(self.one(a))).mean((2, 3)), self.two(F.relu(self.other(b))).mean((2, 3))
        return self.head(a), self.head2(b)


@structure({"into": 7, "mid": 6}, inputs=torch.randn(3, 5))
class TiedTransposed(nn.Module):
    """A weight that is also used transposed, as autoencoders do: what reads its channels there loses them too."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mid, self.out = nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.out(F.relu(self.mid(F.relu(self.into(x)))))
        return F.linear(x, self.into.weight.t())


# -- in place --------------------------------------------------------------------------------------------------------


@structure({"stem": 8, "one": 8})
class InPlaceWhole(Classifier):
    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.one, self.two = conv(3, 8), conv(8, 8), conv(8, 8)
        self.act = nn.ReLU(inplace=True)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu_()
        y = self.two(self.act(self.one(x)))
        y += x
        return y.mul_(0.5).relu_()


@structure({"two": 6}, unprunable={"one": "in place"})
class InPlaceView(TwoConvs):
    """The view is changed; the tensor it looks at is read afterwards."""

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x.flatten(2).add_(1.0)
        return self.two(x)


# -- sizes in the code -----------------------------------------------------------------------------------------------


@structure({"one": 8})
class FlattenIntoLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = conv(3, 8), nn.Linear(8 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(self.one(x)), 2), 1))


@structure({"conv1": 6, "fc1": 12, "fc2": 8}, inputs=image(3, 32), unprunable={"conv2": "size is fixed in the code"})
class TutorialLeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 12), nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


# -- inputs and outputs ------------------------------------------------------------------------------------------------


@structure({"image": 8, "text": 6}, inputs={"image": image(), "text": torch.randn(2, 5), "flag": True, "extra": None})
class KeywordInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text, self.head = conv(3, 8), nn.Linear(5, 6), nn.Linear(14, 4)

    def forward(self, image: Tensor, text: Tensor, flag: bool = False, extra: Tensor | None = None) -> dict[str, Any]:
        x = torch.cat([F.relu(self.image(image)).mean((2, 3)), F.relu(self.text(text))], 1)
        scores = self.head(x) if extra is None else self.head(x + extra)
        return {"scores": scores, "best": (scores.amax(1), 3), "flag": flag}


@structure({"one": 8}, unprunable={"two": OUTPUT})
class FeaturesToo(TwoConvs):
    """The features are returned as well: a user counts on their number."""

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = self.two(F.relu(self.one(x)))
        return self.head(features.mean((2, 3))), [features]


# -- training is another graph -----------------------------------------------------------------------------------------


@structure({"one": 8, "two": 6, "aux": 5})
class AuxiliaryHead(Classifier):
    """The second head exists in training only; it is sliced along."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.aux, self.aux_head = conv(3, 8), conv(8, 6), conv(8, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.one(x))
        scores = self.head(F.relu(self.two(x)).mean((2, 3)))
        if self.training:
            return scores, self.aux_head(F.relu(self.aux(x)).mean((2, 3)))
        return scores


@structure({"stem": 8, "one": 6})
class StochasticDepth(Classifier):
    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.one, self.two = conv(3, 8), conv(8, 6), conv(6, 8)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        branch = self.two(F.relu(self.one(x)))
        if self.training:
            branch = branch / 0.8 * torch.empty(len(x), 1, 1, 1).bernoulli_(0.8)
        return F.relu(x + branch)


# -- must be unprunable, not wrong ------------------------------------------------------------------------------------


@structure({"one": 8}, unprunable={"two": "weight is a buffer", "three": "weight is a buffer"})
class WeightIsBuffer(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.three = conv(3, 8), conv(8, 7), conv(7, 6)
        self.register_buffer("per_channel", torch.rand(7, 1, 3, 3))
        self.register_buffer("blur", torch.rand(6, 6, 3, 3))

    def features(self, x: Tensor) -> Tensor:
        x = F.conv2d(F.relu(self.two(F.relu(self.one(x)))), self.per_channel, groups=7)
        return F.relu(F.conv2d(self.three(x), self.blur))


@structure({"one": 8}, unprunable={"two": "computed, not stored", "normed": "computed", "spectral": "computed"})
class ComputedWeight(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 8), conv(8, 8)
        self.normed = parametrizations.weight_norm(conv(8, 7))
        self.spectral = parametrizations.spectral_norm(conv(7, 6))

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.two(F.relu(self.one(x))))
        return F.relu(self.spectral(F.relu(self.normed(x))))


@structure({"two": 6}, unprunable={"one": "used in another way"})
class WeightReadElsewhere(TwoConvs):
    """The norm of a weight is part of the output."""

    def forward(self, x: Tensor) -> Any:
        scores = self.head(F.relu(self.two(F.relu(self.one(x)))).mean((2, 3)))
        return scores, self.one.weight.square().sum()


@structure(
    {"mlp": 12}, inputs=torch.randint(0, 9, (2, 6)), unprunable={"value": "its size is fixed in the code of forward"}
)
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 8), nn.LayerNorm(8)
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.mlp, self.back, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        q, k, v = (layer(x).view(2, 6, 2, 4).transpose(1, 2) for layer in (self.query, self.key, self.value))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 6, 8)
        return self.head(x + self.back(F.gelu(self.mlp(x)))).mean(1)


@structure({"one": 8, "two": 6})
class Regions(TwoConvs):
    """Two results of a region under autocast (switched off), and a checkpoint."""

    def features(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            x = self.one(x)
            factor = torch.sigmoid(x)
        return checkpoint(lambda y: F.relu(self.two(y * factor)), F.relu(x), use_reentrant=False)


@structure({"one": 8})
class NeverCalled(Classifier):
    def __init__(self) -> None:
        super().__init__(8)
        self.one, self.unused, self.spare = conv(3, 8), conv(8, 8), nn.Parameter(torch.randn(8))

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.one(x))


@structure({"one": 8, "two": 6})
class PartlyFrozenParameters(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6)
        for parameter in (*self.one.parameters(), *self.norm.parameters()):
            parameter.requires_grad_(False)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.one(x)))))


@structure({"one": 8, "two": 6})
class NormalisedMaps(TwoConvs):
    """A closed channel divided by its own length is 0/0; the length of one that is only silenced later is not."""

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x)) + 0.01
        x = x / x.flatten(2).norm(dim=2)[..., None, None]
        return F.normalize(self.two(x), dim=2)


@structure({"one": 8, "two": 6})
class OneByOneMaps(Classifier):
    """Maps of one pixel: a batch of one cannot train its batch norm, but can be planned."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 8), nn.BatchNorm2d(8), conv(8, 6, 1)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(F.relu(self.norm(self.one(x)))))


STRUCTURES["OneByOneMaps"] = Structure("OneByOneMaps", OneByOneMaps, image(batch=1), STRUCTURES["OneByOneMaps"].groups)
