"""Fit one layer to what it reads: by patches, or by channels where there would be too many columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from depl0.search.recovery.regression import Moments, ridge


@final
@dataclass(frozen=True)
class Fit:
    """A layer's new weight, the constant that goes with it, and its error relative to the output's variance."""

    weight: Tensor
    constant: Tensor
    before: float
    after: float


def fit_patches(weight: Tensor, seen: Moments, is_open: Tensor, counts: Tensor, damping: float) -> Fit:
    """Fit every weight of the open input channels.

    Args:
        weight: the layer's weight, (outputs, inputs, kernel …), float64.
        seen: moments of patches, and of the outputs that are wanted.
        is_open: which input channels there still are.
        counts: which outputs' errors are to be reported.
        damping: see :func:`depl0.search.recovery.regression.ridge`.
    """
    old = weight.flatten(1)
    columns = is_open.repeat_interleave(weight[0, 0].numel())
    new, constant = _solve(old, seen, columns, damping)
    error = seen.error(old * columns, torch.zeros_like(constant)), seen.error(new, constant)
    before, after = (_share(part[counts], seen.energy[counts]) for part in error)
    return Fit(new.reshape(weight.shape), constant, before, after)


def fit_channels(weight: Tensor, seen: Moments, is_open: Tensor, damping: float) -> Fit:
    """Express all former channels by the open ones, x ≈ B·x', and let the layer read that: W' = W·B.

    ``seen`` are moments of channels, at all positions of the kernel. The errors are as if neighbouring pixels had
    nothing to do with each other.
    """
    same = torch.eye(weight.shape[1], dtype=torch.float64)
    by_open, constant = _solve(same, seen, is_open, damping)
    filters = weight.flatten(2)  # (outputs, channels, kernel)
    share = filters.square().sum((0, 2))
    error = seen.error(same * is_open, torch.zeros_like(constant)), seen.error(by_open, constant)
    before, after = (_share(part * share, seen.energy * share) for part in error)
    new = torch.einsum("ock,cd->odk", filters, by_open).reshape(weight.shape)
    return Fit(new, torch.einsum("ock,c->o", filters, constant), before, after)


def _solve(old: Tensor, seen: Moments, columns: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    new = torch.zeros_like(old)
    new[:, columns] = ridge(seen.gram[columns][:, columns], seen.cross[:, columns], old[:, columns], damping)
    return new, seen.wanted_mean - new @ seen.mean


def _share(error: Tensor, energy: Tensor) -> float:
    whole = float(energy.sum())
    return float(error.sum()) / whole if whole > 0 else 0.0
