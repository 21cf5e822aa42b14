"""How a network is run in training: layout of its weights, compilation, and batch norm over all processes."""

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
"""the share of a step's time that channels last must save, so that noise does not decide"""
BACKEND = "inductor"

# -- channels last ---------------------------------------------------------------------------------------------------
# Convolutions on channels-last weights give channels-last feature maps, so laying out the weights is enough. Which
# layout is faster depends on the network and the machine. The two round differently: a run keeps to one.


def is_faster_channels_last(accelerator: Accelerator, host: nn.Module, shape: tuple[int, ...]) -> bool:
    """Measure a training step of the dense network in both layouts, on copies; nothing random is used up."""
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
        except RuntimeError:  # a network may read its feature maps in an order of its own (view)
            times[1] = torch.inf
    plain, last = accelerator.reduce(times, reduction="mean").tolist()  # all processes decide alike
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
    """Refuse channels last for a network that depends on the order of its feature maps in memory."""
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
    """Lay the weights of two-dimensional convolutions out channels last, in place; the same Parameters, same values."""
    return _set_layout(model, torch.channels_last)


def set_contiguous(model: nn.Module) -> nn.Module:
    """Lay weights out as a network that is loaded from a file has them, in place."""
    return _set_layout(model, torch.contiguous_format)


@torch.no_grad()
def _set_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)
    return model


@torch.no_grad()
def match_state_layout(optimizer: Any) -> None:
    """Lay an optimizer's state out as its parameters are. Files hold it contiguous, and fused steps do not look."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


# -- compilation -----------------------------------------------------------------------------------------------------


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a network that compiles itself when it is first called, and shares everything with the one given.

    The one given stays as it is: it is what is evaluated, saved and cut. Nothing that changes from step to step is a
    number in the graph (a budget's target, threshold and sharpness are tensors), so one graph serves a whole search;
    a second one is made when the warm-up ends, and one for every smaller host.
    """
    if BACKEND == "inductor" and device.type == "cpu":
        _check_compiler()
    torch.compiler.reset()  # graphs of networks that are gone would count towards the most there may be
    return cast(nn.Module, torch.compile(network, backend=BACKEND))


def _check_compiler() -> None:
    """Refuse before training what would fail in its first step."""
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
    """Let the batch norms of a network see the images of all processes, if wanted and if there are several.

    No module is replaced: for a while the batch norms get the ``forward`` of ``nn.SyncBatchNorm``.
    """
    norms = _batch_norms(model) if wanted and dist.is_available() and dist.is_initialized() else []
    for norm in norms:
        norm.__dict__["forward"] = MethodType(_synced_forward, norm)
    try:
        yield
    finally:
        for norm in (*norms, *(_batch_norms(model) if norms else ())):  # a network that was rebuilt has new ones
            norm.__dict__.pop("forward", None)


def check_norms(model: nn.Module, accelerator: Accelerator) -> None:
    """Refuse to synchronise batch norm on devices without kernels for it, or of a kind of its own.

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
    """Run PyTorch's synchronised batch norm over the very same state, which gates replace for the time of a call."""
    if not norm.training:
        plain: Tensor = type(norm).forward(norm, images)
        return plain
    view = object.__new__(_SyncBatchNorm)
    view.__dict__ = norm.__dict__
    return nn.SyncBatchNorm.forward(view, images)  # the view's own forward would be this one


class _SyncBatchNorm(nn.SyncBatchNorm):
    process_group = None  # all processes
