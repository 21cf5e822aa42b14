"""The networks that compute log α for every gate group.

A new generator is one class in one new file of this folder, decorated with :func:`register`.
"""

from depl0._util.registry import import_modules_of
from depl0.gates.generators.base import (
    GENERATORS,
    BoundedGenerator,
    Direction,
    Generator,
    Memory,
    make_generator,
    register,
)
from depl0.gates.generators.presets import PRESETS, Preset

__all__ = [
    "GENERATORS",
    "PRESETS",
    "BoundedGenerator",
    "Direction",
    "Generator",
    "Memory",
    "Preset",
    "make_generator",
    "register",
]

import_modules_of(__name__)
