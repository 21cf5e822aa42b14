"""The configuration of a search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict, final, get_args

from typing_extensions import Unpack

from depl0._util.registry import unknown
from depl0.errors import InputError

CutPolicy: TypeAlias = Literal["auto", "progressive", "never"]
FirstScores: TypeAlias = Literal["taylor", "reconstruction", "none"]


class SearchChanges(TypedDict, total=False):
    """The fields of :class:`SearchConfig` as keyword arguments."""

    warmup: float
    ramp: float
    cut: CutPolicy
    first_scores: FirstScores
    compensate: bool
    renew_statistics: bool


@final
@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Search configuration. Invalid values raise InputError.

    Attributes:
        warmup: the fraction of the search, at its start, during which all gates stay open.
        ramp: the fraction of it, after the warm-up, in which the target is lowered from the full cost to the budget.
        cut: when closed channels are cut out of the network: ``"progressive"`` (whenever it saves a tenth of the
            remaining MACs), ``"never"`` (only by ``finish``), or ``"auto"``: progressive in one process and under DDP,
            else never, because other gradient synchronization would need the parameters of the smaller network.
        first_scores: the method for the initial scores, given ``calibrate``: ``"taylor"`` (first-order change of the
            loss, or of the outputs without labels, per cost), ``"reconstruction"`` (the remaining error if the consumer
            layers of a channel are refitted without it), or ``"none"``: all gates start with equal scores.
        compensate: refit consumer layers by least squares after the gates are frozen, from ``calibrate``; batch-norm
            statistics are then not re-estimated. With ``ramp=0`` also before the first step, for the gates that the
            initial scores close.
        renew_statistics: re-estimate batch-norm statistics for the frozen gates, from ``calibrate``; kept if the loss
            on other batches falls.

    Raises:
        InputError: a field has a value that is not allowed, or fields contradict each other.

    Example:
        >>> SearchConfig(warmup=0.2, cut="never").ramp
        0.6
    """

    warmup: float = 0.0
    ramp: float = 0.6
    cut: CutPolicy = "auto"
    first_scores: FirstScores = "taylor"
    compensate: bool = False
    renew_statistics: bool = True

    def __post_init__(self) -> None:
        for name in ("warmup", "ramp"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} must be between 0 and 1, got {value!r} instead.")
        if self.warmup == 1 or self.warmup + self.ramp > 1 + 1e-9:
            raise InputError(
                f"warmup and ramp must together be at most 1, got {self.warmup:g} and {self.ramp:g} instead.",
                hint="both are shares of the search, one after the other.",
            )
        if self.first_scores not in get_args(FirstScores):
            raise unknown(
                "first_scores", self.first_scores, get_args(FirstScores), "'none' starts all gates with the same value."
            )
        if self.cut not in get_args(CutPolicy):
            raise unknown("cut", self.cut, get_args(CutPolicy), "'progressive' shrinks the network while it trains.")

    def changed(self, **changes: Unpack[SearchChanges]) -> SearchConfig:
        """Return a copy with some fields changed."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("search setting", name, names, "help(depl0.SearchConfig) lists them.")
        return dataclasses.replace(self, **changes)
