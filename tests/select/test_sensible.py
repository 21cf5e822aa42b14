"""Budgets that leave too little are named before the training."""

from __future__ import annotations

import torch

import depl0
from depl0.app import models
from depl0.select.freeze import least_share
from depl0.select.sensible import sensible_share, warning_for


def test_a_budget_that_leaves_single_channels() -> None:
    gated = depl0.attach(models.build("small_cnn"), torch.zeros(1, 1, 8, 8))
    for of in ("macs", "params"):
        least, sensible = least_share(gated, of), sensible_share(gated, of)
        assert 0 < least < sensible < 0.05
        assert warning_for(gated, sensible, of) is None and warning_for(gated, 0.25, of) is None
        text = warning_for(gated, 0.9 * sensible, of)
        assert text is not None and f"of the {of} leaves one or two channels in most layers" in text
