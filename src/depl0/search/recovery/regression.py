"""Linear least squares from moments that are accumulated over batches, and the refit of one layer with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from depl0._util.process import without_autocast
from depl0.errors import InputError

DAMPING = 1e-3
"""Smallest λ, as a fraction of the mean diagonal of the Gram matrix."""
FEW_ROWS = 1.0
"""λ for few rows, relative to the uncertainty of the Gram matrix (:func:`damping`)."""
MANY = 4
"""Number of tokens for each column that are not few."""
WIDE = 1152
"""Number of columns above which a layer's channels are fitted instead of its patches."""


@final
class Moments:
    """First and second moments of inputs P and targets Y, in float64.

    Rows are centred before they are multiplied: E[P²] − E[P]² would lose all digits if means are large.

    Args:
        centred: if True, a constant can be fitted too; otherwise, moments are about zero.
    """

    def __init__(self, centred: bool = True) -> None:
        self.centred = centred
        self.count = 0.0
        """Number of rows, or the sum of their weights."""
        self.rows, self.weighted = 0, False
        self.mean, self.wanted_mean = torch.zeros(0), torch.zeros(0)
        """E[P] and E[Y], or zeros if no constant can be fitted."""
        self._pp, self._yp, self._yy = torch.zeros(0), torch.zeros(0), torch.zeros(0)

    @without_autocast()
    def add(self, rows: Tensor, wanted: Tensor, weights: Tensor | None = None) -> None:
        """Add inputs (count, columns) and their targets (count, outputs), with a weight for each row."""
        p, y = (part.cpu() if part.device.type == "mps" else part for part in (rows, wanted))
        each = None if weights is None else weights.to(p)[:, None]
        added = float(len(rows) if each is None else each.sum())
        totals = [(part if each is None else part * each).sum(0, dtype=torch.float64) for part in (p, y)]
        mean, wanted_mean = (total / added * self.centred for total in totals)
        if self.centred:
            p, y = p - mean.to(p.dtype), y - wanted_mean.to(y.dtype)
        elif each is None:
            p, y = p.double(), y.double()
        if each is not None:
            p, y = p * each.sqrt(), y * each.sqrt()
        sums = [part.double().cpu() for part in (p.T @ p, y.T @ p, y.square().sum(0))]
        mean, wanted_mean = mean.cpu(), wanted_mean.cpu()
        if self.count:  # Chan et al.: both parts about their common mean
            share = added / (self.count + added)
            apart, wanted_apart = mean - self.mean, wanted_mean - self.wanted_mean
            between = [torch.outer(apart, apart), torch.outer(wanted_apart, apart), wanted_apart.square()]
            old = (self._pp, self._yp, self._yy)
            sums = [a + b + self.count * share * c for a, b, c in zip(old, sums, between, strict=True)]
            mean, wanted_mean = self.mean + share * apart, self.wanted_mean + share * wanted_apart
        self._pp, self._yp, self._yy = sums
        self.mean, self.wanted_mean = mean, wanted_mean
        self.count += added
        self.rows, self.weighted = self.rows + len(rows), weights is not None

    @property
    def gram(self) -> Tensor:
        """The Gram matrix of P, centred if a constant can be fitted."""
        if not bool(self._pp.isfinite().all()):
            raise InputError(
                "the network computes NaN or infinite values from the calibration data.",
                hint="look for very large values in the data and in the network's outputs.",
            )
        return self._pp / self.count

    @property
    def cross(self) -> Tensor:
        """E[Y Pᵀ], centred in the same way."""
        return self._yp / self.count

    @property
    def energy(self) -> Tensor:
        """E[Y²] of every output, centred in the same way."""
        return self._yy / self.count

    def error(self, weight: Tensor, constant: Tensor) -> Tensor:
        """Return E[(Y - weight·P - constant)²] of every output."""
        fitted = (weight @ self.gram * weight).sum(1)
        spread = self.energy - 2 * (weight * self.cross).sum(1) + fitted
        return (spread + (self.wanted_mean - weight @ self.mean - constant).square()).clamp_min(0)


def is_wide(weight: Tensor) -> bool:
    """Return True if a layer's patches have too many columns to fit each of them."""
    return weight[0].numel() > WIDE and weight[0, 0].numel() > 1


def damping(gram: Tensor, rows: int, *, weighted: bool = False) -> float:
    """Return λ for the Gram matrix of this number of rows.

    In a Gram matrix of few rows, columns depend on each other that do not in other data. A classifier has one row of a
    thousand columns for each image. So λ is at least r/n of the mean diagonal, for n rows and r = (tr G)² / tr G²
    independent columns. Weighted rows are tokens, of which four for each column are enough: with more damping,
    SmolLM2 at half of the MACs fails more often on texts that begin with a rare token.

    >>> round(damping(torch.eye(4), rows=10_000), 6), round(damping(torch.eye(4), rows=100), 6)
    (0.001, 0.04)
    """
    total, squares = float(gram.trace()), float(gram.square().sum())
    if weighted and rows >= MANY * len(gram):
        return DAMPING * total / len(gram)
    return total / len(gram) * max(DAMPING, FEW_ROWS * total**2 / max(rows * squares, 1e-300))


def ridge(gram: Tensor, cross: Tensor, start: Tensor, strength: float) -> Tensor:
    """Return the weights W that minimise E|Y - W·P|² + λ|W - start|², λ being the strength.

    The weights hardly change in directions in which the rows have little variance.

    >>> gram = torch.eye(2, dtype=torch.float64)
    >>> ridge(gram, torch.tensor([[2.0, 3.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64), 1e-3)
    tensor([[1.9980, 2.9970]], dtype=torch.float64)
    """
    if not gram.numel():
        return start
    damped = gram + strength * torch.eye(len(gram), dtype=gram.dtype)
    right = (cross + strength * start).T
    factor, failed = torch.linalg.cholesky_ex(damped)
    if int(failed) == 0:
        return torch.cholesky_solve(right, factor).T
    pseudo: Tensor = torch.linalg.pinv(damped, hermitian=True)  # linearly dependent columns
    return (pseudo @ right).T


@final
@dataclass(frozen=True)
class Fit:
    """A layer's new weight, its constant, and its error relative to the output's variance."""

    weight: Tensor
    constant: Tensor
    before: float
    after: float


def fit_patches(weight: Tensor, seen: Moments, is_open: Tensor, counts: Tensor, *, keep_weight: bool = False) -> Fit:
    """Fit all weights of the open input channels.

    Args:
        weight: the layer's weight, (outputs, inputs, kernel …), float64.
        seen: moments of patches, and of the target outputs.
        is_open: mask of the remaining input channels.
        counts: mask of the outputs whose errors are reported.
        keep_weight: if True, relative changes of the weight count as much as relative errors of the outputs, because
            the weight is also used elsewhere.
    """
    old = weight.flatten(1)
    columns = is_open.repeat_interleave(weight[0, 0].numel())
    strength = float(seen.energy.sum() / old.square().sum().clamp_min(1e-30)) if keep_weight else None
    new, constant = _solve(old, seen, columns, strength)
    error = seen.error(old * columns, torch.zeros_like(constant)), seen.error(new, constant)
    before, after = (_share(part[counts], seen.energy[counts]) for part in error)
    return Fit(new.reshape(weight.shape), constant, before, after)


def fit_channels(weight: Tensor, seen: Moments, is_open: Tensor) -> Fit:
    """Express all former channels by the open ones, x ≈ B·x', and set the weight to W' = W·B.

    ``seen`` are moments of channels, at all positions of the kernel. The errors assume that neighbouring pixels are
    independent.
    """
    same = torch.eye(weight.shape[1], dtype=torch.float64)
    by_open, constant = _solve(same, seen, is_open)
    filters = weight.flatten(2)  # (outputs, channels, kernel)
    share = filters.square().sum((0, 2))
    error = seen.error(same * is_open, torch.zeros_like(constant)), seen.error(by_open, constant)
    before, after = (_share(part * share, seen.energy * share) for part in error)
    new = torch.einsum("ock,cd->odk", filters, by_open).reshape(weight.shape)
    return Fit(new, torch.einsum("ock,c->o", filters, constant), before, after)


def fit_depthwise(
    weight: Tensor, patches: Iterable[tuple[Tensor, Tensor]], is_open: Tensor, *, has_constant: bool
) -> Fit:
    """Fit the filters of the open channels of a depthwise convolution, each of which reads one channel.

    Args:
        weight: the layer's weight, (channels, 1, kernel …), float64.
        patches: parts of the current and of the former inputs, (rows, channels, kernel positions).
        is_open: mask of the remaining channels.
        has_constant: if True, a constant is fitted too.
    """
    old = functional.pad(weight.flatten(1), (0, 1))  # the last entry is the constant
    gram, cross, energy, total, count = torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(1), 0
    for seen, was in patches:
        wanted = (was.double().cpu() * old[:, :-1]).sum(2)
        rows = functional.pad(seen.double().cpu(), (0, 1), value=float(has_constant))
        gram = gram + torch.einsum("rci,rcj->cij", rows, rows)
        cross = cross + torch.einsum("rci,rc->ci", rows, wanted)
        energy, total, count = energy + wanted.square().sum(0), total + wanted.sum(0), count + len(rows)
    strength = DAMPING * gram.diagonal(dim1=1, dim2=2)[:, :-1].mean(1, keepdim=True).clamp_min(1e-30)
    strength = strength * torch.cat([torch.ones_like(old[0, :-1]), torch.full((1,), 1e-6, dtype=old.dtype)])
    new = torch.linalg.solve(gram + strength.diag_embed(), cross + strength * old)
    new = torch.where(is_open[:, None], new, old)
    spread = (energy - total.square() / count)[is_open].sum().clamp_min(1e-30)
    errors = [
        energy - 2 * (each * cross).sum(1) + torch.einsum("ci,cij,cj->c", each, gram, each) for each in (old, new)
    ]
    before, after = (float(error[is_open].sum() / spread) for error in errors)
    return Fit(new[:, :-1].reshape(weight.shape), new[:, -1], before, after)


def _solve(old: Tensor, seen: Moments, columns: Tensor, strength: float | None = None) -> tuple[Tensor, Tensor]:
    new = torch.zeros_like(old)
    gram = seen.gram[columns][:, columns]
    strength = damping(gram, seen.rows, weighted=seen.weighted) if strength is None else strength
    new[:, columns] = ridge(gram, seen.cross[:, columns], old[:, columns], strength)
    return new, seen.wanted_mean - new @ seen.mean


def _share(error: Tensor, energy: Tensor) -> float:
    whole = float(energy.sum())
    return float(error.sum()) / whole if whole > 0 else 0.0
