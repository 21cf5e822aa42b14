"""Device and precision."""

from __future__ import annotations

import pytest
import torch

from depl0.app.runtime.processes import make_accelerator
from depl0.errors import InputError
from tests.networks.tiny import tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_without_one(device: str) -> None:
    with pytest.raises(InputError, match=f"device {device} cannot be used: ") as caught:
        make_accelerator(tiny_recipe(run__device=device))
    assert "--device auto" in str(caught.value)


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="device meta cannot be used: training runs on cpu, cuda or mps"):
        make_accelerator(tiny_recipe(run__device="meta"))


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="fp16 needs a GPU"):
        make_accelerator(tiny_recipe(run__precision="fp16"))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision(precision: str, dtype: torch.dtype) -> None:
    accelerator = make_accelerator(tiny_recipe(run__precision=precision))
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
