"""Count the parameters and multiply-accumulates of a network in its current state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from depl0._util.process import exclusive, library_defaults, warn_caller
from depl0._util.random import isolated_random
from depl0.costs.operators import MacCounter
from depl0.host.copies import private_copy, untouched
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, explained_run, module_stack


@dataclass(frozen=True)
class LayerCost:
    """The cost of one module, without its children."""

    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """Parameters and MACs: multiply-accumulates for one image, whatever the batch size of the example inputs."""

    params: int
    macs: int
    layers: Mapping[str, LayerCost] = field(default_factory=dict, repr=False)
    images: int = field(default=1, repr=False, compare=False)
    """Number of images in the example; 1 if its inputs are not a batch."""
    uncounted: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Operators that multiply an input by a parameter and whose MACs are unknown, each with its module."""

    def __str__(self) -> str:
        return f"{self.params:,} parameters, {self.macs:,} MACs"


@library_defaults()
def cost(model: nn.Module, example_inputs: Any) -> Cost:
    """Count the parameters and MACs of a network, in total and layer by layer, in evaluation mode.

    MACs are half of the count of :class:`torch.utils.flop_counter.FlopCounterMode`, plus operators that it ignores
    (:mod:`depl0.costs.operators`). They are counted for one image of the batch; if the network does not run on one
    image
    alone, the MACs of every layer are divided by the number of images. A parameter that several modules share is
    counted
    once, for the first of them. Warns if a parameter is used by an operator whose MACs are unknown.

    Args:
        model: any network; it is not modified.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments for the network.

    Raises:
        InputError: the model is not a network, or does not run on the example.

    Example:
        >>> cost(nn.Linear(4, 3), torch.zeros(1, 4))
        Cost(params=15, macs=12)
        >>> cost(nn.Linear(4, 3), torch.zeros(8, 4))
        Cost(params=15, macs=12)
    """
    copy = private_copy(check_host(model))
    with untouched(model):
        counted = cost_of_copy(copy, ExampleInputs.of(example_inputs))
    warn_of_uncounted(counted)
    return counted


def warn_of_uncounted(counted: Cost) -> None:
    """Warn if a network uses operators whose MACs are unknown."""
    if counted.uncounted:
        warn_caller(
            f"the MACs of these operators are not counted: {', '.join(counted.uncounted)}. A budget is a fraction of "
            "the MACs that are counted."
        )


def cost_of_copy(copy: nn.Module, example: ExampleInputs) -> Cost:
    """Count the cost of a network that is not used elsewhere."""
    with explained_run(copy, example, "example_inputs"):
        return counted_run(copy, example)[0]


def counted_run(copy: nn.Module, example: ExampleInputs) -> tuple[Cost, Any]:
    """Count the cost of a network that is not used elsewhere; also return its outputs on the example."""
    trained = [parameter for parameter in copy.eval().parameters() if parameter.requires_grad]
    copy.requires_grad_(False)
    try:
        with exclusive(), torch.no_grad(), isolated_random(), _without_fused_layers(copy):
            own_macs, images, outputs, uncounted = _macs_of_one(copy, example)
    finally:
        for parameter in trained:
            parameter.requires_grad_()
    seen: set[int] = set()
    layers: dict[str, LayerCost] = {}
    for name, module in copy.named_modules():
        fresh = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(id(p) for p in fresh)
        layer = LayerCost(sum(p.numel() for p in fresh), own_macs.get(name, 0))
        if layer.params or layer.macs:
            layers[name] = layer
    total_params = sum(p.numel() for p in copy.parameters())
    return Cost(total_params, sum(own_macs.values()), layers, images, uncounted), outputs


def _macs_of_one(model: nn.Module, example: ExampleInputs) -> tuple[dict[str, int], int, Any, tuple[str, ...]]:
    """Return every module's own MACs for one image, the number of images, the outputs, and the uncounted operators."""
    own_macs, outputs, uncounted = _counted(model, example)
    images = example.batch()
    if images > 1:
        try:
            of_one, _, _ = _counted(model, example.first())
        except Exception:  # the first dimension is not a batch, or a batch is required
            return own_macs, 1, outputs, uncounted
        if {name: images * macs for name, macs in of_one.items()} == own_macs:
            return of_one, images, outputs, uncounted
    return own_macs, 1, outputs, uncounted


def _counted(model: nn.Module, example: ExampleInputs) -> tuple[dict[str, int], Any, tuple[str, ...]]:
    with module_stack() as running, MacCounter(model, running) as counter:
        outputs = example.call(model)
    return dict(counter.macs), outputs, tuple(counter.uncounted)


@contextmanager
def _without_fused_layers(model: nn.Module) -> Iterator[None]:
    """Run transformer layers, attention and LSTMs step by step, because the counter cannot see inside fused kernels."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    fused = bool(torch._C._get_mkldnn_enabled()) and not any(isinstance(module, nn.LSTM) for module in model.modules())
    try:
        with torch.backends.mkldnn.flags(enabled=fused), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
