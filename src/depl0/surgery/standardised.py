"""Cut convolutions that standardise their filters: they become another class, for which lost weights still count."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from depl0._standardised import StandardisedConv2d, removed_after, standardisation_of
from depl0.analysis.propagate import Axis


def keep_standards(modules: dict[str, nn.Module], name: str, kept: Mapping[int, Tensor]) -> None:
    """Replace a convolution with standardised filters that is about to lose inputs; note what it loses."""
    path, _, attribute = name.rpartition(".")
    module = modules.get(path)
    if attribute != "weight" or not isinstance(module, nn.Conv2d):
        return
    standardisation = standardisation_of(module) if 1 in kept else None
    if standardisation is not None and not isinstance(module, StandardisedConv2d):
        replaced = StandardisedConv2d(module, standardisation)
        for place in [place for place, other in modules.items() if other is module]:
            parent, _, child = place.rpartition(".")
            setattr(modules[parent], child, replaced)
            modules[place] = replaced
        module = replaced
    if isinstance(module, StandardisedConv2d):
        module.removed = _removed(module, kept).to(module.removed)


def exact_sums(model: nn.Module, positions: Mapping[Axis, Tensor]) -> dict[str, Tensor]:
    """Return the sums that a cut network gets, before they are rounded to its own precision."""
    found = {}
    for path, module in model.named_modules():
        name = f"{path}.weight"
        kept = {dim: positions[name, dim] for dim in (0, 1) if (name, dim) in positions}
        is_cut = isinstance(module, StandardisedConv2d) or (1 in kept and standardisation_of(module) is not None)
        if kept and is_cut and isinstance(module, nn.Conv2d):
            found[f"{path}.removed"] = _removed(module, kept)
    return found


def _removed(module: nn.Conv2d, kept: Mapping[int, Tensor]) -> Tensor:
    inputs = kept.get(1, torch.arange(module.weight.shape[1]))
    sums = removed_after(module, inputs)
    return sums.index_select(0, kept[0].to(sums.device)) if 0 in kept else sums
