"""Pruning methods, which decide which channels are kept.

A new method is one class in one new file, decorated with :func:`register`: its paper, its formula, a score for every
gate, and optionally a loss term in training or an action after each epoch. The file is in this folder, or in another
package that registers it as an entry point of the group ``depl0.methods``.
"""

from depl0._util.registry import import_modules_of
from depl0.app.methods.base import (
    METHODS,
    Batches,
    Learned,
    Loss,
    Method,
    Scored,
    rank_within_groups,
    register,
)

__all__ = [
    "METHODS",
    "Batches",
    "Learned",
    "Loss",
    "Method",
    "Scored",
    "rank_within_groups",
    "register",
]

import_modules_of(__name__)
