"""Channels last where it is faster: how the weights of convolutions lie in memory, chosen once in a run.

Convolutions on channels-last weights give channels-last feature maps, so laying out the weights is enough. Which layout
is faster depends on the network and the machine; a short measurement before training decides. The decision is kept with
the run's history, because the two layouts round differently and a resumed run must go on to the bit.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.random import isolated_random
from depl0.errors import InputError
from depl0.host.network import evaluation_mode

ROUNDS = 3
LEAST_GAIN = 0.03
"""the share of a step's time that channels last must save, so that noise does not decide"""


def is_faster(engine: Accelerator, host: nn.Module, shape: tuple[int, ...]) -> bool:
    """Measure a training step of the dense network in both layouts, on copies; nothing random is used up."""
    networks = [copy.deepcopy(host).train(), set_channels_last(copy.deepcopy(host).train())]
    images = _random_images(shape, engine.device)
    times = torch.full((2,), torch.inf, device=engine.device)
    with isolated_random():
        try:
            for round_number in range(ROUNDS + 1):
                for place, network in enumerate(networks):
                    seconds = _step_seconds(engine, network, images)
                    if round_number > 0:  # the first one warms up
                        times[place] = min(float(times[place]), seconds)
        except RuntimeError:  # a network may read its feature maps in an order of its own (view)
            times[1] = torch.inf
    plain, last = engine.reduce(times, reduction="mean").tolist()  # all processes decide alike
    return bool(last < (1 - LEAST_GAIN) * plain)


def _step_seconds(engine: Accelerator, network: nn.Module, images: Tensor) -> float:
    start = time.perf_counter()
    with engine.autocast():
        outputs = [t for t in pytree.tree_leaves(network(images)) if isinstance(t, Tensor) and t.is_floating_point()]
        loss = torch.stack([t.float().square().mean() for t in outputs]).sum()
    loss.backward()
    network.zero_grad(set_to_none=True)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    return time.perf_counter() - start


def check_runs(engine: Accelerator, host: nn.Module, image_shape: tuple[int, ...]) -> None:
    """Refuse channels last for a network that depends on the order of its feature maps in memory."""
    network = set_channels_last(copy.deepcopy(host))
    try:
        with evaluation_mode(network), torch.no_grad(), engine.autocast():
            network(_random_images((2, *image_shape), engine.device))
    except RuntimeError as error:
        raise InputError(
            f"run.channels_last is on, but the network does not run so: {str(error).splitlines()[0]}",
            hint="use run.channels_last = 'off', or .reshape and .flatten instead of .view in the network.",
        ) from error


def _random_images(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


# -- layouts ---------------------------------------------------------------------------------------------------------


def lay_out(model: nn.Module, channels_last: bool) -> None:
    """Give a network the layout that was decided on. Call it before optimizers have state, and on every new host."""
    if channels_last:
        set_channels_last(model)


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
def lay_out_state(optimizer: Any) -> None:
    """Lay an optimizer's state out as its parameters are. Files hold it contiguous, and fused steps do not look."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
