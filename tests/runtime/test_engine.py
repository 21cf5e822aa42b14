"""Device, precision, trackers and random numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from depl0.app.runtime.engine import any_process, make_engine, rng_states, seed_everything, set_rng_state
from depl0.errors import InputError
from tests.networks.tiny import tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_without_one(device: str) -> None:
    with pytest.raises(InputError, match=f"device is {device}, but torch sees no CUDA device") as caught:
        make_engine(tiny_recipe(run__device=device))
    assert "--device cpu" in str(caught.value)


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="device is meta"):
        make_engine(tiny_recipe(run__device="meta"))


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="fp16 needs a GPU"):
        make_engine(tiny_recipe(run__precision="fp16"))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision(precision: str, dtype: torch.dtype) -> None:
    engine = make_engine(tiny_recipe(run__precision=precision))
    with engine.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_a_tracker_that_is_not_installed(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depl0.app.runtime.engine.find_spec", lambda name: None)
    with pytest.raises(InputError, match="tracker wandb is not installed") as caught:
        make_engine(tiny_recipe(run__trackers=["wandb"]), tmp_path)  # type: ignore[arg-type]
    assert "pip install wandb" in str(caught.value)


def draw() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), np.random.randn(), random.gauss(0, 1), float(torch.rand(()))


def test_random_numbers_go_on_where_they_were() -> None:
    engine = make_engine(tiny_recipe())
    draw()
    (state,) = rng_states(engine)
    first = draw()
    assert draw() != first
    set_rng_state(engine, state)
    assert draw() == first


def test_ranks_draw_their_own() -> None:
    drawn = []
    for rank in (0, 1, 0):
        seed_everything(2**32 - 1, rank)
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert all(a != b for a, b in zip(drawn[0], drawn[1], strict=True))


def test_one_process_decides_alone() -> None:
    assert any_process(make_engine(tiny_recipe()), True, False) == [True, False]
