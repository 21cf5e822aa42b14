"""What a method is: either its gates are learned by the search, or it gives every gate a score. Methods by name."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from depl0._util.registry import Registry
from depl0._util.user_code import load_class, wrap_user_errors
from depl0.analysis.plan import Plan
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.search.calibration import Batches as Batches
from depl0.search.calibration import Loss as Loss


class Method(abc.ABC):
    """A way to decide which channels of a network stay. Methods hold no state."""

    reference: ClassVar[str]
    """the paper"""

    @abc.abstractmethod
    def check(self, gated: GatedModel) -> None:
        """Refuse a network that the method cannot judge, before any training."""


class Learned(Method):
    """A method whose gates are trained together with the weights."""

    generators: ClassVar[tuple[str, ...] | None] = None
    """the generators that it allows; None: all"""

    def check(self, gated: GatedModel) -> None:
        """Take every network that gates can be put on."""


class Scored(Method):
    """A method that gives every gate a score; those with the highest stay open, as many as the budget allows.

    The scores of coupled layers are added: a gate closes all of them or none.
    """

    scope: ClassVar[Literal["network", "group"]] = "network"
    """where scores can be compared: in the whole network, or only within a group, which then all lose one share"""
    trains: ClassVar[bool] = False
    """whether the method changes the training itself, and so needs the search's epochs even for trained weights"""
    clip_norm: ClassVar[float | None] = None
    """the norm that gradients are cut to in the method's training, where the recipe does not say"""
    weight: ClassVar[float] = 0.0
    """what the method's term in training is multiplied by, where the recipe does not say"""

    def check(self, gated: GatedModel) -> None:
        """Take every network that gates can be put on, unless a method says otherwise."""

    @abc.abstractmethod
    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return one score per gate in plan order; high is worth keeping. Host, modes and gates are left as they were.

        Args:
            gated: the network to judge; its gates are taken as open.
            batches: training images for methods that look at some; not all of them need be read.
            loss: the loss of the task.
            rng: the source of anything random.
        """

    def term(self, gated: GatedModel) -> Tensor | None:
        """Return what is added to the loss in training, before it is weighted; None: nothing."""
        return None

    def after_epoch(self, gated: GatedModel, keep: Callable[[Tensor], Tensor]) -> None:
        """Do what the method does after each epoch of its training.

        ``keep`` tells for comparable scores (:meth:`comparable`) which gates would stay open within the budget.
        """

    def comparable(self, plan: Plan, scores: Tensor) -> Tensor:
        """Return scores that can be compared in the whole network."""
        return rank_within_groups(plan, scores) if self.scope == "group" else scores


def rank_within_groups(plan: Plan, scores: Tensor) -> Tensor:
    """Replace scores by their rank in the group, (rank + ½) / size, so that every group loses the same share."""
    ranks = torch.empty_like(scores)
    for group in plan.groups:
        order = scores[group.gates].argsort(stable=True)
        ranks[group.gates][order] = (torch.arange(group.size, device=scores.device).to(scores) + 0.5) / group.size
    return ranks


_M = TypeVar("_M", bound=type[Method])


def _own(spec: str) -> Method:
    kind = load_class(spec, "method", Method)  # type: ignore[type-abstract]
    if not issubclass(kind, (Learned, Scored)):
        raise InputError(
            f"method {spec!r} must be below depl0.app.methods.Scored or Learned.",
            hint="Scored gives every gate a score; Learned trains the gates.",
        )
    with wrap_user_errors("method", spec):
        return kind()


METHODS: Registry[Method] = Registry("method", "'dep-l0' is the paper's method.", "depl0.methods", _own)
"""Every registered method by its name; other packages add theirs by the entry point ``depl0.methods``."""


def register(name: str) -> Callable[[_M], _M]:
    """Make a method known by a name: ``@register("l1-norm")``."""
    return METHODS.register(name, lambda method: method())


def find_method(name: str) -> Method:
    """Return a method by its name, or one of the user's own: ``path/to/file.py:Name``.

    >>> find_method("fpgm").scope
    'group'
    """
    return METHODS.find(name)
