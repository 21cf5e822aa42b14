"""Cut a network, and replace the modules that would not work with fewer channels."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from depl0.analysis.propagate import Axis
from depl0.replacements.base import Replacement
from depl0.surgery.slicing import slice_module


def cut_to(model: nn.Module, positions: Mapping[Axis, Tensor], replacements: Mapping[str, Replacement]) -> None:
    """Keep only the given positions of a network's axes, in place, and replace the modules that need it."""
    ordered = sorted(replacements.items(), key=lambda entry: entry[1].rank)
    for path, replacement in ordered:
        replacement.before_slicing(model, path, positions)
    slice_module(model, positions)
    for path, replacement in ordered:
        replacement.cut(model, path, positions)
