"""Detectors with the blocks of YOLO, and small."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvNormAct(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
        self.norm, self.act = nn.BatchNorm2d(outputs), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, width: int, hidden: int, shortcut: bool) -> None:
        super().__init__()
        self.one, self.two, self.add = ConvNormAct(width, hidden, 3), ConvNormAct(hidden, width, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.one(x)) if self.add else self.two(self.one(x))


class C2f(nn.Module):
    """Halves of one convolution, and every bottleneck's output after them, side by side."""

    def __init__(self, inputs: int, outputs: int, shortcut: bool) -> None:
        super().__init__()
        hidden = outputs // 2
        self.width = hidden
        self.one, self.two = ConvNormAct(inputs, 2 * hidden), ConvNormAct(4 * hidden, outputs)
        self.m = nn.ModuleList(Bottleneck(hidden, hidden, shortcut) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self._joined(list(self.one(x).chunk(2, 1)))

    def forward_for_export(self, x: Tensor) -> Tensor:
        return self._joined(list(self.one(x).split((self.width, self.width), 1)))

    def _joined(self, parts: list[Tensor]) -> Tensor:
        parts.extend(block(parts[-1]) for block in self.m)
        return self.two(torch.cat(parts, 1))


class PositionalAttention(nn.Module):
    """Attention over all places, half as many keys as values, and a depthwise convolution of the values.

    The values get the shape of the input, so both must have as many channels.
    """

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.head_dim, self.key_dim = heads, width // heads, width // heads // 2
        self.scale = self.key_dim**-0.5
        self.qkv = ConvNormAct(width, width + 2 * self.key_dim * heads)
        self.proj, self.places = ConvNormAct(width, width), ConvNormAct(width, width, 3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[2] * x.shape[3]
        qkv = self.qkv(x).view(x.shape[0], self.heads, 2 * self.key_dim + self.head_dim, count)
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.head_dim], 2)
        attention = (q.transpose(-2, -1) @ k * self.scale).softmax(-1)
        return self.proj((v @ attention.transpose(-2, -1)).view(x.shape) + self.places(v.reshape(x.shape)))


class C2PSA(nn.Module):
    """One half of a convolution goes through attention and two more layers, each around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width // 2
        self.one, self.two = ConvNormAct(width, width), ConvNormAct(width, width)
        self.attention = PositionalAttention(self.width)
        self.feed = nn.Sequential(ConvNormAct(self.width, width), ConvNormAct(width, self.width))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.one(x).split((self.width, self.width), 1)
        right = right + self.attention(right)
        return self.two(torch.cat((left, right + self.feed(right)), 1))


class Detect(nn.Module):
    """Boxes as distributions over distances, and classes, at every level."""

    def __init__(self, widths: tuple[int, ...], classes: int = 3, bins: int = 4) -> None:
        super().__init__()
        self.boxes = nn.ModuleList(nn.Sequential(ConvNormAct(w, 8, 3), nn.Conv2d(8, 4 * bins, 1)) for w in widths)
        self.classes = nn.ModuleList(
            nn.Sequential(ConvNormAct(w, w, 3, groups=w), ConvNormAct(w, 8), nn.Conv2d(8, classes, 1)) for w in widths
        )
        self.bins, self.outputs = bins, 4 * bins + classes
        self.register_buffer("steps", torch.arange(bins, dtype=torch.float32))

    def forward(self, levels: list[Tensor]) -> Tensor | list[Tensor]:
        found = [
            torch.cat((box(x), scores(x)), 1) for x, box, scores in zip(levels, self.boxes, self.classes, strict=True)
        ]
        if self.training:
            return found
        flat = torch.cat([x.view(x.shape[0], self.outputs, -1) for x in found], 2)
        boxes, scores = flat.split((4 * self.bins, self.outputs - 4 * self.bins), 1)
        boxes = boxes.view(boxes.shape[0], 4, self.bins, -1).softmax(2)
        return torch.cat(((boxes * self.steps.view(1, 1, -1, 1)).sum(2), scores.sigmoid()), 1)


class Detector(nn.Module):
    """Backbone, a pyramid down and up again, and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = ConvNormAct(3, 8, 3, 2), ConvNormAct(8, 16, 3, 2)
        self.c2f, self.down2 = C2f(16, 16, shortcut=True), ConvNormAct(16, 24, 3, 2)
        self.pool, self.up = nn.MaxPool2d(5, 1, 2), nn.Upsample(scale_factor=2, mode="nearest")
        self.top, self.down3 = C2f(40, 16, shortcut=False), ConvNormAct(16, 16, 3, 2)
        self.bottom, self.detect = C2f(40, 24, shortcut=False), Detect((16, 24))

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        fine = self.c2f(self.down(self.stem(x)))
        coarse = self.pool(self.down2(fine))
        top = self.top(torch.cat((self.up(coarse), fine), 1))
        bottom = self.bottom(torch.cat((self.down3(top), coarse), 1))
        return self.detect([top, bottom])


class AttentiveDetector(nn.Module):
    """A backbone that ends in attention, and a head."""

    def __init__(self, stem: int = 8) -> None:
        super().__init__()
        self.stem, self.down = ConvNormAct(3, stem, 3, 2), ConvNormAct(stem, 32, 3, 2)
        self.c2psa, self.detect = C2PSA(32), Detect((32,))

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        return self.detect([self.c2psa(self.down(self.stem(x)))])
