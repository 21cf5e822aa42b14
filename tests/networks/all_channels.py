"""Structures with small modules that look at all channels at once: a mean, a maximum, a convolution along channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.structures import Classifier, conv, structure


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


@structure({"two": 6}, unprunable={"one": "all channels are read, and they cannot be made zero (at centred)"})
class CentresSigmoids(CentresChannels):
    """A closed channel is one half where the mean is taken."""

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.two(self.centred(torch.sigmoid(self.one(x)))))


@structure({"two": 6}, unprunable={"one": "mean over channels"})
class CentresInForward(CentresChannels):
    """There is no module that could be run at its full width."""

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return F.relu(self.two(x - x.mean(1, keepdim=True)))
