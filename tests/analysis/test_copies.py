"""Copies of a network that its analysis works on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from depl0.host.copies import private_copy


def test_modules_of_torch_are_copied_without_deepcopy(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    deepcopy = copy.deepcopy
    monkeypatch.setattr(copy, "deepcopy", lambda value, memo: copied.append(value) or deepcopy(value, memo))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MultiheadAttention(8, 2))
    result = private_copy(net, torch.float64)
    assert not [value for value in copied if isinstance(value, (nn.Module, dict, set))]
    assert {tensor.dtype for tensor in result.parameters()} == {torch.float64}
    assert all(torch.equal(a.double(), b) for a, b in zip(net.parameters(), result.parameters(), strict=True))
