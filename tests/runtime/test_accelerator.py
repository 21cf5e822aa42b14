"""Device, precision, trackers and random numbers."""

from __future__ import annotations

import pytest
import torch

from depl0.app.runtime.accelerator import any_process, make_accelerator, rng_states
from depl0.errors import InputError
from tests.networks.tiny import tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_without_one(device: str) -> None:
    with pytest.raises(InputError, match=f"device is {device}, but torch sees no CUDA device") as caught:
        make_accelerator(tiny_recipe(run__device=device))
    assert "--device cpu" in str(caught.value)


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="device is meta"):
        make_accelerator(tiny_recipe(run__device="meta"))


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="fp16 needs a GPU"):
        make_accelerator(tiny_recipe(run__precision="fp16"))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision(precision: str, dtype: torch.dtype) -> None:
    accelerator = make_accelerator(tiny_recipe(run__precision=precision))
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_a_tracker_that_is_not_installed(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depl0.app.runtime.accelerator.find_spec", lambda name: None)
    with pytest.raises(InputError, match="tracker wandb is not installed") as caught:
        make_accelerator(tiny_recipe(run__trackers=["wandb"]), tmp_path)  # type: ignore[arg-type]
    assert "pip install wandb" in str(caught.value)


def test_one_process_has_one_random_state() -> None:
    (state,) = rng_states(make_accelerator(tiny_recipe()))
    assert state.keys() == {"python", "numpy", "torch"}


def test_one_process_decides_alone() -> None:
    assert any_process(make_accelerator(tiny_recipe()), True, False) == [True, False]
