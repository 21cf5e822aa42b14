"""Parameters and multiply-accumulates of a network as it stands, counted by torch's own flop counter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from depl0._util.defaults import own_defaults
from depl0._util.random import isolated_random
from depl0.host.copies import private_copy, untouched
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, explained_run


def _grouped_flops(rows: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    """Return the operations of a product in which groups of rows (or of columns) have a matrix each."""
    every = 2 * rows.numel() * weight[-1]
    return every // rows[0] if (len(rows), len(weight)) == (3, 2) else every


_UNCOUNTED = {torch.ops.aten._grouped_mm: _grouped_flops}
"""operators that torch's counter takes for free"""


@dataclass(frozen=True)
class LayerCost:
    """The cost of one module, its children not included."""

    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """Parameters and MACs: multiply-accumulates for one image, whatever the batch of the example inputs."""

    params: int
    macs: int
    layers: Mapping[str, LayerCost] = field(default_factory=dict, repr=False)
    images: int = field(default=1, repr=False, compare=False)
    """how many images the example held; 1 where its inputs are no batch"""

    def __str__(self) -> str:
        return f"{self.params:,} parameters, {self.macs:,} MACs"


@own_defaults()
def cost(model: nn.Module, example_inputs: Any) -> Cost:
    """Count the parameters and MACs of a network, in total and layer by layer, in evaluation mode.

    MACs are half of what :class:`torch.utils.flop_counter.FlopCounterMode` counts, for one image: where one image of
    the batch alone takes its share of every layer's MACs. A parameter that several modules share counts once, for the
    first of them.

    Args:
        model: any network; it is not modified.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments that it runs on.

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
        return cost_of_copy(copy, ExampleInputs.of(example_inputs))


def cost_of_copy(copy: nn.Module, example: ExampleInputs) -> Cost:
    """Count the cost of a network that nobody else has."""
    with explained_run(copy, example, "example_inputs"):
        return counted_run(copy, example)[0]


def counted_run(copy: nn.Module, example: ExampleInputs) -> tuple[Cost, Any]:
    """Count the cost of a network that nobody else has; return what it gives on the example, too."""
    trained = [parameter for parameter in copy.eval().parameters() if parameter.requires_grad]
    copy.requires_grad_(False)
    try:
        with torch.no_grad(), isolated_random(), _without_fused_layers(copy):
            own_macs, images, outputs = _macs_of_one(copy, example)
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
    return Cost(total_params, sum(own_macs.values()), layers, images), outputs


def _macs_of_one(model: nn.Module, example: ExampleInputs) -> tuple[dict[str, int], int, Any]:
    """Return every module's own MACs for one image, the images of the example, and the outputs."""
    own_macs, outputs = _counted(model, example)
    images = example.batch()
    if images > 1:
        try:
            of_one, _ = _counted(model, example.first())
        except Exception:  # the first dimension is no batch, or there has to be one
            return own_macs, 1, outputs
        if {name: images * macs for name, macs in of_one.items()} == own_macs:
            return of_one, images, outputs
    return own_macs, 1, outputs


def _counted(model: nn.Module, example: ExampleInputs) -> tuple[dict[str, int], Any]:
    with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
        outputs = example.call(model)
    return _own_macs(counter, type(model).__name__), outputs


@contextmanager
def _without_fused_layers(model: nn.Module) -> Iterator[None]:
    """Run transformer layers, attention and LSTMs step by step: inside their fused forms the counter sees nothing."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    fused = bool(torch._C._get_mkldnn_enabled()) and not any(isinstance(module, nn.LSTM) for module in model.modules())
    try:
        with torch.backends.mkldnn.flags(enabled=fused), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _own_macs(counter: FlopCounterMode, root: str) -> dict[str, int]:
    """Return every module's MACs without those of its children."""
    totals: dict[str, int] = {}
    for name, per_operator in counter.get_flop_counts().items():
        if name == root or name.startswith(f"{root}."):
            totals[name.removeprefix(root).removeprefix(".")] = sum(per_operator.values()) // 2
    own = dict(totals)
    for name, macs in totals.items():
        if name:
            own[_nearest(name.rpartition(".")[0], totals)] -= macs
    return own


def _nearest(name: str, totals: dict[str, int]) -> str:
    """Return the nearest enclosing module that was counted (a ModuleList, for one, is never called)."""
    while name and name not in totals:
        name = name.rpartition(".")[0]
    return name
