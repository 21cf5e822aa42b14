"""How examples become batches: described once, for :func:`open_data` and for recipes."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, final, get_args

import annotated_types as at

from depl0.app.schema import Above0, BelowOne, Count, Number, Positive, Schema, Seed, ShareAbove0

Augmentation: TypeAlias = Literal["default", "none", "crop", "crop-flip", "imagenet"]
AUGMENTATIONS = get_args(Augmentation)


class DataFields(Schema):
    """Data settings that recipes and :class:`DataSettings` share."""

    batch_size: Positive = 128
    """Training examples per step, over all processes."""
    eval_batch_size: Positive = 500
    """Test examples per batch and process."""
    mean: Annotated[tuple[Number, ...], at.MinLen(1)] | None = None
    """Subtracted from images in [0, 1], one number per channel (default: the data set's own)."""
    std: Annotated[tuple[Above0, ...], at.MinLen(1)] | None = None
    """Images are divided by it, one number per channel (default: the data set's own)."""
    augment: Augmentation = "default"
    """crop: random crop of the zero-padded image; crop-flip: also mirrored half of the time; imagenet: random resized
    crop, mirrored half of the time (folder: only); default: the usual choice for the data set."""
    crop_padding: Count = 4
    """Zeros on each side of an image before it is cropped."""
    image_size: Positive | tuple[Positive, Positive] | None = None
    """Resize images to this side, or to height and width (default: the data set's own size; for folder: the network's
    own, else that of the files if all have the same small size, else 224)."""
    crop_share: ShareAbove0 | None = None
    """Fraction of a test image's side that the centre crop keeps (folder: only; default: the network's own, else
    0.875). Images of the wanted size are neither resized nor cropped."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """How image files are resized (folder: only; default: the network's own, else bilinear)."""
    limit_train: Count = 0
    """Use only this many training examples, the same for every seed; 0: all."""
    limit_test: Count = 0
    """Use only this many test examples, the same for every seed; 0: all."""
    validation: BelowOne = 0.0
    """Fraction of the training examples held out for choices, the same for every seed; the test examples are used at
    the end only."""
    workers: Count | None = None
    """Processes that read examples from disk; 0: this process (default: the number of free cores, at most 8)."""

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width that images are resized to; None: images keep their size."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    def settings(self, seed: int) -> DataSettings:
        """Return the same settings with a seed."""
        return DataSettings(seed=seed, **{name: getattr(self, name) for name in DataFields.model_fields})


@final
class DataSettings(DataFields):
    """Settings of :func:`open_data`: those of :class:`DataFields`, and the seed of order and augmentation."""

    seed: Seed = 0
    """Seed of the order and augmentation of training examples."""
