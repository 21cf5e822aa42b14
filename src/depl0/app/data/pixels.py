"""Crop, mirror and normalise whole batches of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from depl0.errors import InputError

RESIZE_CHUNK = 1024


def crop_and_flip(images: Tensor, top: Tensor, left: Tensor, flip: Tensor, padding: int) -> Tensor:
    """Shift each image within its zero padding, and mirror those whose ``flip`` is true.

    ``top`` and ``left`` say where in the padded image each crop begins, from 0 to ``2 * padding``; the crop has the
    image's own size. What leaves the image is lost, what comes in is zero.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    >>> one = torch.tensor([1])
    >>> crop_and_flip(image, top=one, left=2 * one, flip=one > 0, padding=1).tolist()
    [[[[0, 2], [0, 4]]]]
    """
    batch, channels, height, width = images.shape
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    padded = images.new_zeros(batch, channels, padded_height, padded_width)
    padded[:, :, padding : padding + height, padding : padding + width] = images

    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None], columns.flip(0), columns) + left[:, None]  # (batch, width)
    rows = torch.arange(height, device=images.device) + top[:, None]  # (batch, height)
    places = rows[:, :, None] * padded_width + columns[:, None, :]  # (batch, height, width)
    # One gather for crop and mirror: several times as fast as indexing with rows and columns.
    places = places.view(batch, 1, height * width).expand(-1, channels, -1)
    return padded.view(batch, channels, -1).gather(2, places).view(batch, channels, height, width)


@final
class Normalise:
    """Turns uint8 images into floats: (x / 255 − mean) / std, channel by channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self.mean, self.std = tuple(mean), tuple(std)
        spread = torch.tensor(std, dtype=torch.float64)
        shift = -torch.tensor(mean, dtype=torch.float64) / spread
        self._scale = (1 / (255 * spread)).view(-1, 1, 1).to(device, torch.float32)
        self._shift = shift.view(-1, 1, 1).to(device, torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (batch, channels, height, width)."""
        return images.to(torch.float32).mul_(self._scale).add_(self._shift)


def normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None, own: tuple[Sequence[float], Sequence[float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Take the data set's own mean and std where none are wanted, and check that there is one for each channel."""
    chosen = own[0] if mean is None else mean, own[1] if std is None else std
    channels = len(own[0])
    for field, values in zip(("mean", "std"), chosen, strict=True):
        if len(values) != channels:
            raise InputError(
                f"The data setting {field!r} must have {channels} numbers, one for each channel of the images, "
                f"got {len(values)} instead."
            )
    return tuple(chosen[0]), tuple(chosen[1])


def resize(images: Tensor, sides: tuple[int, int]) -> Tensor:
    """Resize uint8 images to a height and width, bilinear and without aliasing."""
    if images.shape[2:] == sides:
        return images
    resized = images.new_empty(*images.shape[:2], *sides)
    for start in range(0, len(images), RESIZE_CHUNK):
        chunk = images[start : start + RESIZE_CHUNK].to(torch.float32)
        chunk = functional.interpolate(chunk, sides, mode="bilinear", antialias=True)
        resized[start : start + RESIZE_CHUNK] = chunk.round_().clamp_(0, 255).to(torch.uint8)
    return resized
