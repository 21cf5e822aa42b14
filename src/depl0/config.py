"""The gate configuration: frozen data that :func:`depl0.attach` and recipes share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, final, get_args

import torch
from typing_extensions import TypedDict

from depl0._util.registry import unknown
from depl0.analysis.plan import GroupChoice
from depl0.errors import InputError
from depl0.gates import hard_concrete
from depl0.gates.generators import Preset, make_generator
from depl0.gates.generators.base import Direction
from depl0.gates.threshold import BudgetKind, check_share

Runtime: TypeAlias = Literal["pytorch", "onnxruntime"]
"""Runtimes in which a latency budget is measured."""
MinShare: TypeAlias = "float | Mapping[str, float]"
Draw: TypeAlias = Literal["batch", "image"]
EvaluationRule: TypeAlias = Literal["median", "paper"]
PenaltyKind: TypeAlias = str
"""``"params"``, ``"macs"``, ``"groups"``, ``"latency"``, or one of :data:`~depl0.costs.expected.PENALTIES`"""
PenaltyScale: TypeAlias = Literal["share", "count"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Gate configuration. Invalid values raise InputError.

    Attributes:
        generator: the network that computes the gates' log α: ``"fc"`` (the paper's), ``"independent"`` (L0-HC), …
        direction: the order in which the generator visits the groups.
        draw: training samples gates once for the ``"batch"``, or for each ``"image"`` as the authors' code does. The
            latter needs more memory, since gates then multiply feature maps instead of γ and β.
        groups: ``"all"``, ``"inner"`` (the paper's rule: no layer whose output is added to a shortcut), a list of
            names, or a function.
        alone: layers whose output gets separate gates although it is added to a shortcut. These gates only multiply: no
            channel is removed for them and they have no cost in parameters and MACs, so they exclude a budget.
        preset: ``"default"``, or the published forms ``"paper"``, ``"reference"`` and ``"reference-vgg16"``.
        start: initial log α of every gate, instead of the preset's.
        evaluation: the rule for the gates outside training.
        budget: the fraction of the cost to keep. None: gates are closed by a penalty in the loss.
        of: the cost that the budget counts. For ``"latency"``, the search varies the fraction of MACs until the pruned
            model, timed beside the original one on its device, is within the budget.
        runtime: the runtime of a latency budget: ``"pytorch"``, or ``"onnxruntime"`` if the model is deployed there.
        round_to: every group keeps a multiple of this many channels, or all of them; 8, 16 or 32 suit most hardware.
        remove_blocks: remove layers that closed groups have made constant; otherwise one channel stays.
        min_share: the smallest fraction of its channels that every group keeps, whatever their importance. Use a dict
            of group names or shell patterns for several fractions (the first match counts): ``{"*.mlp.*": 0.25, "*":
            0.1}``.

    Raises:
        InputError: a field has a value that is not allowed, or fields contradict each other.

    Example:
        >>> GateConfig(budget=0.5).of
        'macs'
    """

    generator: str = "fc"
    direction: Direction = "forward"
    draw: Draw = "batch"
    groups: GroupChoice = "all"
    alone: tuple[str, ...] = ()
    preset: str | Preset = "default"
    start: float | None = None
    evaluation: EvaluationRule = "median"
    budget: float | None = None
    of: BudgetKind = "macs"
    runtime: Runtime = "pytorch"
    round_to: int = 1
    remove_blocks: bool = False
    min_share: MinShare = 0.0

    def __post_init__(self) -> None:
        hard_concrete.closing_log_alpha(self.evaluation)
        make_generator(
            self.generator,
            [1],
            direction=self.direction,
            preset=self.preset,
            start=self.start,
            rng=torch.Generator(),  # a check must not advance the global random state
        )
        for name, kind in (("draw", Draw), ("of", BudgetKind), ("runtime", Runtime)):
            if (value := getattr(self, name)) not in get_args(kind):
                choices = " or ".join(map(repr, get_args(kind)))
                raise InputError(f"{name} must be {choices}, got {value!r} instead.")
        if self.budget is not None:
            check_share(self.budget)
            if self.alone:
                raise InputError(
                    f"alone must be empty if there is a budget, got {self.alone!r} instead.",
                    hint="gates that cut nothing cost nothing, and have nothing to compete for.",
                )
        check_round_to(self.round_to)
        _check_min_share(self.min_share)

    def min_gates(self, name: str, size: int) -> int:
        """Return the smallest number of gates that a group of this name and size keeps, by ``min_share``.

        >>> config = GateConfig(min_share={"*.mlp": 0.25, "*": 0.01})
        >>> config.min_gates("0.mlp", 10), config.min_gates("head", 10), GateConfig().min_gates("head", 10)
        (3, 1, 0)
        """
        shares = self.min_share if isinstance(self.min_share, Mapping) else {"*": self.min_share}
        share = next((share for pattern, share in shares.items() if fnmatchcase(name, pattern)), 0.0)
        return math.ceil(share * size - 1e-9)

    def changed(self, **changes: Any) -> GateConfig:
        """Return a copy of the configuration with some fields changed."""
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("gate setting", name, names, "help(depl0.GateConfig) lists them.")
        return dataclasses.replace(self, **changes)


def _check_min_share(min_share: object) -> None:
    """Raise InputError unless this is a fraction, or fractions by patterns."""
    shares = list(min_share.values()) if isinstance(min_share, Mapping) else [min_share]
    if not all(isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1 for share in shares):
        raise InputError(
            f"min_share must be between 0 and 1, or a dict of patterns to such shares, got {min_share!r} instead.",
            hint="0.1 keeps at least a tenth of the channels of every group.",
        )


def check_round_to(round_to: object) -> None:
    """Raise InputError unless this is a number of channels."""
    if isinstance(round_to, bool) or not isinstance(round_to, int) or round_to < 1:
        raise InputError(
            f"round_to must be an integer of at least 1, got {round_to!r} instead.",
            hint="8, 16 or 32 channels suit most hardware; 1 rounds nothing.",
        )


class OtherGateChanges(TypedDict, total=False):
    """The fields of :class:`GateConfig` as keyword arguments, except the budget."""

    generator: str
    direction: Direction
    draw: Draw
    groups: GroupChoice
    alone: tuple[str, ...]
    preset: str | Preset
    start: float | None
    evaluation: EvaluationRule
    of: BudgetKind
    runtime: Runtime
    round_to: int
    remove_blocks: bool
    min_share: MinShare
