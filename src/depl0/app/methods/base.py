"""Base classes and registry of methods, and those that learn their gates in the search (Dep-L0 and L0-HC)."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar, final

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
    """Decides which channels of a network are kept. Methods are stateless."""

    reference: ClassVar[str]
    """the paper"""

    def check(self, gated: GatedModel) -> None:  # noqa: B027 - most methods accept every network that can be gated
        """Raise before any training if the method cannot score this network."""


class Learned(Method):
    """A method whose gates are trained together with the weights."""

    generators: ClassVar[tuple[str, ...] | None] = None
    """the allowed generators; None: all"""


class Scored(Method):
    """A method that scores every gate.

    The gates with the highest scores stay open, as many as the budget allows. The scores of coupled layers are added,
    because a gate closes the channel in all of them.
    """

    scope: ClassVar[Literal["network", "group"]] = "network"
    """scope in which scores are comparable: the whole network, or each group, so that all groups lose the same
    fraction"""
    trains: ClassVar[bool] = False
    """whether the method changes the training, so that it needs the search's epochs even for trained weights"""
    clip_norm: ClassVar[float | None] = None
    """default norm that gradients are clipped to in the method's training"""
    weight: ClassVar[float] = 0.0
    """default weight of the method's loss term in training"""

    @abc.abstractmethod
    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return one score per gate in plan order; channels with high scores are kept.

        Host, modes and gates are unchanged.

        Args:
            gated: the network to score; its gates are treated as open.
            batches: training images for methods that use data; not all of them need to be read.
            loss: the loss of the task.
            rng: generator of all random numbers.
        """

    def term(self, gated: GatedModel) -> Tensor | None:
        """Return the unweighted term that is added to the loss in training, or None."""
        return None

    def after_epoch(self, gated: GatedModel, keep: Callable[[Tensor], Tensor]) -> None:
        """Run the method's action after each epoch of its training.

        ``keep`` maps comparable scores (:meth:`comparable`) to the gates that would stay open within the budget.
        """

    def comparable(self, plan: Plan, scores: Tensor) -> Tensor:
        """Return scores that are comparable across the whole network."""
        return rank_within_groups(plan, scores) if self.scope == "group" else scores


def rank_within_groups(plan: Plan, scores: Tensor) -> Tensor:
    """Replace scores by their rank in the group, (rank + ½) / size, so that every group loses the same fraction."""
    ranks = torch.empty_like(scores)
    for group in plan.groups:
        order = scores[group.gates].argsort(stable=True)
        ranks[group.gates][order] = (torch.arange(group.size, device=scores.device).to(scores) + 0.5) / group.size
    return ranks


_M = TypeVar("_M", bound=type[Method])


def _own(spec: str) -> Method:
    kind = load_class(spec, "method", Method)
    if not issubclass(kind, (Learned, Scored)):
        raise InputError(
            f"method {spec!r} must be below depl0.app.methods.Scored or Learned.",
            hint="Scored gives every gate a score; Learned trains the gates.",
        )
    with wrap_user_errors("method", spec):
        return kind()


METHODS: Registry[Method] = Registry("method", "'dep-l0' is the paper's method.", "depl0.methods", _own)
"""All registered methods by name. Other packages add methods through the entry point ``depl0.methods``."""


def register(name: str) -> Callable[[_M], _M]:
    """Return a decorator that registers a method by name: ``@register("l1-norm")``."""
    return METHODS.register(name, lambda method: method())


# -- methods that learn their gates ------------------------------------------------------------------------------------


@register("dep-l0")
@final
class DepL0(Learned):
    """Hard concrete gates whose log α come from a generator that walks the layers.

    log α_l = c·tanh(generator_l(log α_{l−1})); weights and generator are trained together under the expected cost
    (:mod:`depl0.gates.generators`, :mod:`depl0.gates.hard_concrete`).
    """

    reference = "Li, Ji: Dep-L0: Improving L0-based Network Sparsification via Dependency Modeling. ECML 2021"


@register("l0-hc")
@final
class L0HC(Learned):
    """Hard concrete gates with one free log α each; weights and log α are trained together under the expected cost."""

    reference = "Louizos, Welling, Kingma: Learning Sparse Neural Networks through L0 Regularization. ICLR 2018"
    generators = ("independent",)
