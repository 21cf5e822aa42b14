"""How the images of a data set become batches: described once, for :func:`open_data` and for recipes."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import final

from depl0.app.checks import Either, ListOf, Maybe, Number, OneOf, Whole
from depl0.app.settings import Settings, allow

AUGMENTATIONS = ("default", "none", "crop", "crop-flip", "imagenet")
MAX_SEED = 2**32 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFields(Settings):
    """What can be set about data.

    Attributes:
        batch_size: training images in one step, over all ranks.
        eval_batch_size: test images in one batch of one rank.
        mean: what is taken from images in [0, 1], one number for each channel; None is the data set's own.
        std: what the images are divided by after that; None is the data set's own.
        augment: ``"none"``; ``"crop"``, a random crop out of the zero-padded image; ``"crop-flip"``, the same and
            mirrored half of the time; ``"imagenet"``, a random part of random shape, resized, and mirrored half of the
            time (``folder:`` only); ``"default"``, what is usual for the data set.
        crop_padding: zeros on each side of the image before it is cropped.
        image_size: the side of squares, or height and width, that images are resized to; None is the data set's own.
        limit_train: use only so many training images, the same ones for every seed; 0 is all.
        epoch_images: training images that make an epoch; 0 is all. Short epochs share one pass over the data, so that
            a search of a few hundred steps sees as many different images as a long one.
        validation: the share of these training images that is held out, the same ones for every seed, and evaluated
            without augmentation: choices are made on it, and the test images are left for the end; 0 is none.
        workers: processes that read images which are not in memory; 0 reads them in this one, None takes as many as the
            machine has cores to spare, eight at most.
    """

    batch_size: int = field(default=128, metadata=allow(Whole(at_least=1)))
    eval_batch_size: int = field(default=500, metadata=allow(Whole(at_least=1)))
    mean: tuple[float, ...] | None = field(default=None, metadata=allow(Maybe(ListOf(entry=Number(), at_least=1))))
    std: tuple[float, ...] | None = field(
        default=None, metadata=allow(Maybe(ListOf(entry=Number(above=0), at_least=1)))
    )
    augment: str = field(default="default", metadata=allow(OneOf(AUGMENTATIONS)))
    crop_padding: int = field(default=4, metadata=allow(Whole(at_least=0)))
    image_size: int | tuple[int, int] | None = field(
        default=None, metadata=allow(Maybe(Either(Whole(at_least=1), ListOf(entry=Whole(at_least=1), length=2))))
    )
    limit_train: int = field(default=0, metadata=allow(Whole(at_least=0)))
    epoch_images: int = field(default=0, metadata=allow(Whole(at_least=0)))
    validation: float = field(default=0.0, metadata=allow(Number(at_least=0, below=1)))
    workers: int | None = field(default=None, metadata=allow(Maybe(Whole(at_least=0))))

    @property
    def sides(self) -> tuple[int, int] | None:
        """Return the height and width that images are resized to; None: nothing is resized."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    def settings(self, seed: int) -> DataSettings:
        """Return the same with a seed."""
        return DataSettings(
            seed=seed, **{entry.name: getattr(self, entry.name) for entry in dataclasses.fields(DataFields)}
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(DataFields):
    """How the images of a data set become batches.

    Attributes:
        seed: what the order and the augmentation of the training images depend on, besides epoch and step.

    All others are those of :class:`DataFields`.

    >>> DataSettings(batch_size=0)
    Traceback (most recent call last):
        ...
    depl0.errors.InputError: The data setting 'batch_size' must be a whole number of at least 1, got 0 instead.
    """

    seed: int = field(default=0, metadata=allow(Whole(at_least=0, at_most=MAX_SEED)))

    def _called(self, field_name: str) -> str:
        return f"The data setting {field_name!r}"
