"""Cut weights whose lengths are stored separately (weight norm), without scaling the remaining entries.

A weight norm computes w = g·v/‖v‖. Without some of its entries v is shorter, and w would grow. Therefore g is
multiplied
by the remaining fraction of the length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations


@dataclass(frozen=True)
class _Norm:
    lengths: str
    direction: Tensor
    dim: int

    def share_left(self, kept: Mapping[int, Tensor]) -> Tensor:
        """Return the remaining fraction of every length with these positions, in float64."""
        whole = left = self.direction.detach().double()
        for dim, keep in kept.items():
            if dim != self.dim:
                left = left.index_select(dim, keep.to(left.device))
        others = [dim for dim in range(whole.dim()) if dim != self.dim]
        return (left.square().sum(others, keepdim=True) / whole.square().sum(others, keepdim=True)).sqrt()


def keep_directions(modules: Mapping[str, nn.Module], name: str, kept: Mapping[int, Tensor]) -> None:
    """Reduce the lengths of a direction, before it is cut to these positions."""
    norm = _norm_of(modules, name)
    if norm is not None:
        path, _, attribute = norm.lengths.rpartition(".")
        lengths = getattr(modules[path], attribute)
        with torch.no_grad():
            lengths.copy_(lengths.double() * norm.share_left(kept).view_as(lengths))


def exact_lengths(
    model: nn.Module, scaled: Mapping[str, Tensor], positions: Mapping[tuple[str, int], Tensor]
) -> dict[str, Tensor]:
    """Return the lengths of a network after the cut, before they are rounded to its own precision.

    Rounding does not count as a difference between two networks, but would look like one in a float64 comparison.
    """
    modules, found = dict(model.named_modules(remove_duplicate=False)), {}
    for name in dict.fromkeys(name for name, _ in positions):
        norm = _norm_of(modules, name)
        if norm is None:
            continue
        kept = {dim: keep for (other, dim), keep in positions.items() if other == name}
        lengths = scaled.get(norm.lengths, model.get_parameter(norm.lengths)).detach().double()
        lengths = lengths * norm.share_left(kept).view_as(lengths)
        keep = kept.get(norm.dim)
        found[norm.lengths] = lengths if keep is None else lengths.index_select(norm.dim, keep.to(lengths.device))
    return found


def _norm_of(modules: Mapping[str, nn.Module], name: str) -> _Norm | None:
    """Return the weight norm whose direction has this name."""
    path, _, attribute = name.rpartition(".")
    beside = {"weight_v": "weight_g", "original1": "original0"}.get(attribute)
    module = modules.get(path)
    if module is None or beside is None or not isinstance(getattr(module, beside, None), nn.Parameter):
        return None
    dim = _dim(module, attribute)
    lengths = f"{path}.{beside}" if path else beside
    return None if dim is None else _Norm(lengths, getattr(module, attribute), dim)


def _dim(module: nn.Module, attribute: str) -> int | None:
    """Return the dimension along which the lengths of a weight norm vary; None if there is no weight norm."""
    if attribute == "weight_v":
        hooks = [hook for hook in module._forward_pre_hooks.values() if getattr(hook, "name", "") == "weight"]
        dims = [getattr(hook, "dim", None) for hook in hooks]
        return next((dim for dim in dims if isinstance(dim, int)), None)
    norms = [m for m in module.children() if isinstance(m, parametrizations._WeightNorm)]
    return norms[0].dim if norms else None
