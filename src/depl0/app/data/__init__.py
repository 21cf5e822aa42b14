"""Data sets as batches that are a pure function of seed, epoch and step.

>>> data = open_data("digits", DataSettings(batch_size=100, seed=1))
>>> [tuple(images.shape) for images, labels in data.train.epoch(0, first_step=12)]
[(100, 1, 8, 8), (100, 1, 8, 8)]
"""

from __future__ import annotations

from depl0.app.data.base import DataInfo, DataSettings, Target
from depl0.app.data.batches import Batches, Data
from depl0.app.data.registry import names, open_data, shown_data

__all__ = [
    "Batches",
    "Data",
    "DataInfo",
    "DataSettings",
    "Target",
    "names",
    "open_data",
    "shown_data",
]
