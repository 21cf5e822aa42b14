"""Dep-L0: gates that depend on each other."""

from __future__ import annotations

from typing import final

from depl0.app.methods.base import Learned
from depl0.app.methods.registry import register


@register("dep-l0")
@final
class DepL0(Learned):
    """Hard concrete gates whose log α come from a generator that walks the layers.

    log α_l = c·tanh(generator_l(log α_{l−1})); weights and generator are trained together under the expected cost
    (:mod:`depl0.gates.generators`, :mod:`depl0.gates.hard_concrete`).
    """

    reference = "Li, Ji: Dep-L0: Improving L0-based Network Sparsification via Dependency Modeling. ECML 2021"
