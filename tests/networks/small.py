"""Small networks for structures that the public zoo lacks or hides."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


class UNet(nn.Module):
    """Encoder and decoder with skips by concatenation, transposed convolutions and group norms."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, width), _block(width, 2 * width), _block(2 * width, 4 * width)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2), nn.ConvTranspose2d(2 * width, width, 2, stride=2)]
        )
        self.merge = nn.ModuleList([_block(4 * width, 2 * width), _block(2 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return a map of class scores, in a dict."""
        first = self.down[0](x)
        second = self.down[1](nn.functional.max_pool2d(first, 2))
        x = self.down[2](nn.functional.max_pool2d(second, 2))
        x = self.merge[0](torch.cat([second, self.up[0](x)], dim=1))
        x = self.merge[1](torch.cat([first, self.up[1](x)], dim=1))
        return {"out": self.head(x)}


class PreActivationBlock(nn.Module):
    """Norm and activation before each convolution; the stream itself is never normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the stream."""
        y = self.conv1(torch.relu(self.bn1(x)))
        return x + self.conv2(torch.relu(self.bn2(y)))


class PreActivationNet(nn.Module):
    """A pre-activation residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*[PreActivationBlock(16) for _ in range(3)])
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        x = torch.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))


class TwoInputNet(nn.Module):
    """Two inputs through one shared stem, tied heads, a tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.branch = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.mix = nn.Sequential(nn.Conv2d(24, 20, 1), nn.PReLU(20))
        self.left, self.right = nn.Linear(20, 5), nn.Linear(20, 5)
        self.right.weight = self.left.weight

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return two vectors of scores."""
        x = torch.cat([self.stem(a), self.branch(self.stem(b))], dim=1)
        x = self.mix(x).mean((2, 3))
        return self.left(x), self.right(x)


class PatchTransformer(nn.Module):
    """torch's own transformer layers over the patches of an image, of any size."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        layer = nn.TransformerEncoderLayer(width, 2, 24, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores."""
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
