"""Methods whose gates are learned: hard concrete gates that are dependent (Dep-L0) or independent (L0-HC)."""

from __future__ import annotations

from typing import final

from depl0.app.methods.base import Learned, register


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
