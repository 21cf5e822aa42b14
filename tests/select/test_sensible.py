"""Budgets that leave too little are named before the training."""

from __future__ import annotations

import torch

import depl0
from depl0.app import models
from depl0.select.gates import budget_warning, minimum_share, sensible_share


def test_a_budget_that_leaves_single_channels() -> None:
    gated = depl0.attach(models.build("small_cnn"), torch.zeros(1, 1, 8, 8))
    for of in ("macs", "params"):
        network = gated.snapshot()
        least, sensible = minimum_share(network, gated.config.changed(of=of)), sensible_share(network, of)
        assert 0 < least < sensible < 0.05
        assert budget_warning(network, sensible, of) is None and budget_warning(network, 0.25, of) is None
        text = budget_warning(network, 0.9 * sensible, of)
        assert text is not None and f"of the {of} leaves one or two channels in most layers" in text
