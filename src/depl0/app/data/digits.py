"""``digits``: 1,797 handwritten digits of 8x8 pixels that scikit-learn brings along."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from depl0._util.optional import require
from depl0.app.data.base import Data, Target
from depl0.app.data.memory import Arrays, open_arrays
from depl0.app.data.registry import register
from depl0.app.data.settings import DataSettings

SPLIT_SEED = 0


@register("digits", needs_path=False)
def open_digits(path: Path, settings: DataSettings, target: Target) -> Data:
    """Open the digits: 1,437 for training and 360 for testing, always the same ones."""
    bunch = require("sklearn.datasets", "scikit-learn", "for the digits").load_digits()
    levels = np.asarray(bunch.images)  # (1797, 8, 8), from 0 to 16
    images = torch.from_numpy(np.rint(levels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = np.asarray(bunch.target, dtype=np.int64)

    # Every fifth image of a shuffled list sorted by class is for testing, so each class gives a fifth.
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    test = np.sort(by_class[::5])
    train = np.setdiff1d(by_class, test)
    arrays = Arrays(
        name="digits",
        train=(images[train], torch.from_numpy(labels[train])),
        test=(images[test], torch.from_numpy(labels[test])),
        num_classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        mean=(0.3055,),
        std=(0.3760,),
        augment="none",  # a mirrored digit is no digit, and 8x8 pixels leave no room
    )
    return open_arrays(arrays, settings, target)
