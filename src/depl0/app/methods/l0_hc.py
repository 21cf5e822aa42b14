"""L0-HC: independent gates."""

from __future__ import annotations

from typing import final

from depl0.app.methods.base import Learned
from depl0.app.methods.registry import register


@register("l0-hc")
@final
class L0HC(Learned):
    """Hard concrete gates with one free log α each; weights and log α are trained together under the expected cost."""

    reference = "Louizos, Welling, Kingma: Learning Sparse Neural Networks through L0 Regularization. ICLR 2018"
    generators = ("independent",)
