"""Linear least squares from moments that are added up batch by batch, in float64 on the CPU."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class Moments:
    """First and second moments of rows P (what is there) and Y (what is wanted).

    Args:
        centred: whether a constant may be fitted too; without one, nothing is subtracted.
    """

    def __init__(self, centred: bool = True) -> None:
        self.centred = centred
        self.count = 0
        self._pp, self._yp = torch.zeros(0), torch.zeros(0)
        self._p, self._y, self._yy = torch.zeros(0), torch.zeros(0), torch.zeros(0)

    def add(self, rows: Tensor, wanted: Tensor) -> None:
        """Add rows (count, columns) and what is wanted for them (count, outputs)."""
        sums = [rows.T @ rows, wanted.T @ rows, rows.sum(0), wanted.sum(0), wanted.square().sum(0)]
        parts = [part.double().cpu() if part.device.type != "mps" else part.cpu().double() for part in sums]
        if self.count:
            parts = [old.add_(new) for old, new in zip(self._sums, parts, strict=True)]
        self._pp, self._yp, self._p, self._y, self._yy = parts
        self.count += len(rows)

    @property
    def _sums(self) -> list[Tensor]:
        return [self._pp, self._yp, self._p, self._y, self._yy]

    @property
    def mean(self) -> Tensor:
        """Return E[P], or zeros where nothing is subtracted."""
        return self._p / self.count if self.centred else torch.zeros_like(self._p)

    @property
    def wanted_mean(self) -> Tensor:
        """Return E[Y], or zeros where nothing is subtracted."""
        return self._y / self.count if self.centred else torch.zeros_like(self._y)

    @property
    def gram(self) -> Tensor:
        """Return the Gram matrix of P, centred where a constant may be fitted."""
        return self._pp / self.count - torch.outer(self.mean, self.mean)

    @property
    def cross(self) -> Tensor:
        """Return E[Y Pᵀ], centred likewise."""
        return self._yp / self.count - torch.outer(self.wanted_mean, self.mean)

    @property
    def energy(self) -> Tensor:
        """Return E[Y²] of every output, centred likewise."""
        return (self._yy / self.count - self.wanted_mean.square()).clamp_min(0)

    def error(self, weight: Tensor, constant: Tensor) -> Tensor:
        """Return E[(Y - weight·P - constant)²] of every output."""
        fitted = (weight @ self.gram * weight).sum(1)
        spread = self.energy - 2 * (weight * self.cross).sum(1) + fitted
        return (spread + (self.wanted_mean - weight @ self.mean - constant).square()).clamp_min(0)


def ridge(gram: Tensor, cross: Tensor, start: Tensor, damping: float) -> Tensor:
    """Return the weights W that minimise E|Y - W·P|² + λ|W - start|², λ = ``damping`` of the Gram's mean diagonal.

    Where the rows say little, the weights stay what they were.

    >>> gram = torch.eye(2, dtype=torch.float64)
    >>> ridge(gram, torch.tensor([[2.0, 3.0]], dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64), 1.0)
    tensor([[1.0000, 1.5000]], dtype=torch.float64)
    """
    if not gram.numel():
        return start
    strength = float(damping * gram.diagonal().mean())
    damped = gram + strength * torch.eye(len(gram), dtype=gram.dtype)
    right = (cross + strength * start).T
    factor, failed = torch.linalg.cholesky_ex(damped)
    if int(failed) == 0:
        return torch.cholesky_solve(right, factor).T
    pseudo: Tensor = torch.linalg.pinv(damped, hermitian=True)  # no damping, and columns that depend on each other
    return (pseudo @ right).T
