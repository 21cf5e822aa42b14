"""Saving, restoring and isolating the state of random number generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from depl0._util.random import isolated_random, random_state, seed_everything, set_random_state


def draw() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), np.random.randn(), random.gauss(0, 1), float(torch.rand(()))


def test_random_numbers_go_on_where_they_were() -> None:
    draw()
    state = random_state()
    first = draw()
    assert draw() != first
    set_random_state(state)
    assert draw() == first


def test_seeds_beyond_32_bits_differ() -> None:
    drawn = []
    for rank in (0, 1, 0):
        seed_everything(2**32 - 1 + rank)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert all(a != b for a, b in zip(drawn[0], drawn[1], strict=True))


def test_what_is_drawn_inside_is_repeatable_and_nothing_is_used_up_outside() -> None:
    state = random_state()
    outside = draw()
    set_random_state(state)
    drawn = []
    for seed in (5, 5, 6):
        with isolated_random(seed):
            drawn.append(draw())
    assert drawn[0] == drawn[1] != drawn[2]
    assert draw() == outside
    set_random_state(state)
    with pytest.raises(KeyError), isolated_random():
        draw()
        raise KeyError
    assert draw() == outside


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """The generator of an accelerator, which CUDA would have."""
    generator = torch.Generator().manual_seed(3)
    monkeypatch.setattr("depl0._util.random._accelerators", lambda: {"cuda": [generator]})
    return generator


def test_accelerators_are_restored_like_the_cpu(device: torch.Generator) -> None:
    def sample() -> list[float]:
        drawn: list[float] = torch.rand(3, generator=device).tolist()
        return drawn

    state: dict[str, Any] = random_state()
    first = sample()
    with isolated_random(7):
        inside = sample()
    with isolated_random(7):
        assert sample() == inside
    set_random_state(state)
    assert sample() == first
    set_random_state(state)
    with isolated_random(7, accelerators=False):
        assert sample() == first, "transforms of data leave the device alone"
    del state["cuda"]
    set_random_state(state)  # saved on a machine without one
