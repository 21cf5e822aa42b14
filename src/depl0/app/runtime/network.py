"""Execution of a network in training: memory layout of its weights, compilation, and synchronized batch norm."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from depl0._util.random import isolated_random
from depl0.errors import InputError
from depl0.host.network import evaluation_mode

ROUNDS = 3
MIN_GAIN = 0.03
"""fraction of a step's time that channels last must save, so that the choice does not depend on noise"""
BACKEND = "inductor"

# -- channels last ---------------------------------------------------------------------------------------------------
# Convolutions with channels-last weights produce channels-last feature maps, so converting the weights is enough. Which
# layout is faster depends on the network and the machine. The two layouts round differently, so a run uses only one.


def is_faster_channels_last(accelerator: Accelerator, host: nn.Module, shape: tuple[int, ...]) -> bool:
    """Time a training step of the dense network in both layouts, on copies. Random generators keep their state."""
    networks = [copy.deepcopy(host).train(), set_channels_last(copy.deepcopy(host).train())]
    images = _random_images(shape, accelerator.device)
    times = torch.full((2,), torch.inf, device=accelerator.device)
    with isolated_random():
        try:
            for round_number in range(ROUNDS + 1):
                for place, network in enumerate(networks):
                    seconds = _step_seconds(accelerator, network, images)
                    if round_number > 0:  # the first one warms up
                        times[place] = min(float(times[place]), seconds)
        except RuntimeError:  # a network may depend on the memory order of its feature maps (view)
            times[1] = torch.inf
    plain, last = accelerator.reduce(times, reduction="mean").tolist()  # all processes must decide the same
    return bool(last < (1 - MIN_GAIN) * plain)


def _step_seconds(accelerator: Accelerator, network: nn.Module, images: Tensor) -> float:
    start = time.perf_counter()
    with accelerator.autocast():
        outputs = [t for t in pytree.tree_leaves(network(images)) if isinstance(t, Tensor) and t.is_floating_point()]
        loss = torch.stack([t.float().square().mean() for t in outputs]).sum()
    loss.backward()
    network.zero_grad(set_to_none=True)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return time.perf_counter() - start


def check_channels_last(accelerator: Accelerator, host: nn.Module, image_shape: tuple[int, ...]) -> None:
    """Raise if a network cannot use channels last because it depends on the memory order of its feature maps."""
    network = set_channels_last(copy.deepcopy(host))
    try:
        with evaluation_mode(network), torch.no_grad(), accelerator.autocast():
            network(_random_images((2, *image_shape), accelerator.device))
    except RuntimeError as error:
        raise InputError(
            f"run.channels_last is on, but the network does not run so: {str(error).splitlines()[0]}",
            hint="use run.channels_last = 'off', or .reshape and .flatten instead of .view in the network.",
        ) from error


def _random_images(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def set_channels_last(model: nn.Module) -> nn.Module:
    """Convert the weights of two-dimensional convolutions to channels last, in place.

    Parameters and values are the same.
    """
    return _set_layout(model, torch.channels_last)


def set_contiguous(model: nn.Module) -> nn.Module:
    """Convert weights to the contiguous layout of a network loaded from a file, in place."""
    return _set_layout(model, torch.contiguous_format)


@torch.no_grad()
def _set_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return model


@torch.no_grad()
def match_state_layout(optimizer: Any) -> None:
    """Convert an optimizer's state to the layout of its parameters.

    Files store it contiguous, and fused steps do not check.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


# -- compilation -----------------------------------------------------------------------------------------------------


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a network that is compiled on its first call and shares all state with the given network.

    The given network is unchanged; it is the one that is evaluated, saved and cut. No value that changes from step to
    step is a constant in the graph (a budget's target, threshold and sharpness are tensors), so one graph serves a
    whole search. A second graph is compiled when the warm-up ends, and one for every smaller host.
    """
    if BACKEND == "inductor" and device.type == "cpu":
        _check_compiler()
    torch.compiler.reset()  # graphs of deleted networks would count towards the limit on graphs
    return cast(nn.Module, torch.compile(network, backend=BACKEND))


def _check_compiler() -> None:
    """Raise before training if compilation would fail in the first step."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise InputError(
            "run.compile is on, but torch.compile finds no C++ compiler for this device.",
            hint="install one (g++ or clang++) and name it in CXX, or set run.compile to false.",
        ) from error


# -- batch norm over all processes -----------------------------------------------------------------------------------


@contextmanager
def synced_norms(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Synchronize the batch norms of a network over all processes within the context, if wanted.

    No module is replaced. The batch norms temporarily use the ``forward`` of ``nn.SyncBatchNorm``.
    """
    norms = _batch_norms(model) if wanted and dist.is_available() and dist.is_initialized() else []
    for norm in norms:
        norm.__dict__["forward"] = MethodType(_synced_forward, norm)
    try:
        yield
    finally:
        for norm in (*norms, *(_batch_norms(model) if norms else ())):  # a rebuilt network has new batch norms
            norm.__dict__.pop("forward", None)


def check_norms(model: nn.Module, accelerator: Accelerator) -> None:
    """Raise if batch norm cannot be synchronized, because the device lacks kernels or ``forward`` is overridden.

    Raises:
        InputError: several processes train on a CPU, or a batch norm overrides ``forward``.
    """
    if accelerator.num_processes > 1 and accelerator.device.type != "cuda":
        raise InputError(
            f"batch norm can only be synchronised between GPUs, but the processes train on {accelerator.device.type}.",
            hint="set run.sync_bn to false.",
        )
    _batch_norms(model)


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    norms = []
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            continue
        if type(module).forward is not _BatchNorm.forward:
            raise InputError(
                f"batch norm cannot be synchronised: {name} is a {type(module).__name__}, which overrides forward.",
                hint="set run.sync_bn to false.",
            )
        norms.append(module)
    return norms


def _synced_forward(norm: _BatchNorm, images: Tensor) -> Tensor:
    """Run PyTorch's synchronized batch norm on the same state, which gates replace during a call."""
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, images)
        return plain
    view = object.__new__(_SyncBatchNorm)
    view.__dict__ = norm.__dict__
    return nn.SyncBatchNorm.forward(view, images)  # otherwise the view would call this function again


class _SyncBatchNorm(nn.SyncBatchNorm):
    process_group = None  # all processes
