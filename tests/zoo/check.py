"""What must hold for every network of the zoo."""

from __future__ import annotations

import copy
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import depl0
from depl0.surgery.record import record_of
from tests.support.compare import flat, random_gates
from tests.zoo.networks import Entry, example

CLOSE = 1e-5
"""how far outputs in float32 may be apart, relative to the largest"""


@dataclass(frozen=True)
class Row:
    """One line of the zoo's table."""

    name: str
    share: float
    error: float
    macs_left: float
    least: float
    seconds: float
    reasons: dict[str, int]
    blocks: int | None = None
    """layers that went with whole groups (remove_blocks); None where that was not tried"""
    rounding: float = 0.0
    """how far the gated network's own outputs in float32 are from those in float64, where the error is not close"""

    @property
    def exact(self) -> bool:
        """Return whether the two networks differ by rounding at most."""
        return self.error <= max(CLOSE, 10 * self.rounding)


def liven(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Make an untrained network react to its input: random affines, and batch-norm statistics of real activations."""
    rng = torch.Generator().manual_seed(1)
    norms = [m for m in model.modules() if isinstance(m, (_BatchNorm, nn.GroupNorm, nn.LayerNorm))]
    with torch.no_grad():
        for norm in norms:
            if norm.weight is not None:
                norm.weight.copy_(torch.rand(norm.weight.shape, generator=rng) + 0.5)
            if norm.bias is not None:
                norm.bias.copy_(torch.randn(norm.bias.shape, generator=rng) * 0.3)
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if isinstance(module, (nn.Linear, nn.Conv2d)) and not bool(weight.any()):  # some heads start at zero
                weight.normal_(std=0.02, generator=rng)
        for parameter in model.parameters():
            if parameter.squeeze().dim() == 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.copy_(torch.rand(parameter.shape, generator=rng) + 0.5)  # layer scales start near zero
        batch_norms = [norm for norm in norms if isinstance(norm, _BatchNorm)]
        for norm in batch_norms:
            norm.momentum = 1.0
        model.train()
        try:
            model(*inputs)
        finally:
            for norm in batch_norms:
                norm.momentum = 0.1
            model.eval()


def check(entry: Entry, seed: int = 2, blocks: bool = False) -> Row:
    """Prune a network at random and return how far the compact one is from the gated one, in float32.

    Extraction has compared both in float64 before, on other batches and sizes and in training mode, where the network
    takes them. ``blocks``: whole groups are closed and removed as well.
    """
    torch.manual_seed(seed)
    model = entry.build()
    inputs = example(entry, model)
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    liven(model, args)
    start = time.perf_counter()
    gated = depl0.attach(model, inputs).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates, seed))
    compact = gated.extract().eval()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        wanted, found = flat(gated(*args)), flat(compact(*args))
    with tempfile.TemporaryDirectory() as folder:
        depl0.load(depl0.save(compact, folder), entry.build)  # compares outputs
    counted = depl0.cost(compact, inputs)
    kept = gated.kept_cost()
    assert (kept.params, kept.macs) == (counted.params, counted.macs), "kept_cost is not the compact network's cost"
    assert type(compact) is type(model)
    removed = _remove_blocks(gated) if blocks else None
    error = float((wanted - found).abs().max() / wanted.abs().max())
    return Row(
        name=entry.name,
        share=gated.plan.prunable_channels / gated.plan.channels,
        error=error,
        rounding=0.0 if error <= CLOSE else _rounding(gated, args, wanted),
        macs_left=counted.macs / gated.dense_cost.macs,
        least=gated.plan.least(),
        seconds=seconds,
        reasons=gated.plan.unprunable(),
        blocks=removed,
    )


def _rounding(gated: depl0.GatedModel, args: tuple[Any, ...], wanted: torch.Tensor) -> float:
    with torch.no_grad():
        precise = flat(copy.deepcopy(gated).double()(*(arg.double() for arg in args)))
    return float((precise - wanted).abs().max() / precise.abs().max())


def _remove_blocks(gated: depl0.GatedModel) -> int:
    """Close every third group that is added to no shortcut, and extract without what that makes useless."""
    gates = torch.ones(gated.plan.num_gates)
    for group in [group for group in gated.plan.groups if not group.shared][::3]:
        gates[group.gates] = 0
    if not gated.snapshot().depends_on_input(gates):
        return 0
    gated.fix_gates(gates)
    return len(record_of(gated.extract(remove_blocks=True)).removed)
