"""The networks that give every gate group's log α.

A new generator is one class in one new file of this folder, decorated with :func:`register`.
"""

import importlib
import pkgutil

from depl0.generators.base import CONDITIONINGS, BoundedGenerator, Direction, Generator, Memory
from depl0.generators.presets import PRESETS, Preset
from depl0.generators.registry import GENERATORS, make_generator, register

__all__ = [
    "CONDITIONINGS",
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

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
