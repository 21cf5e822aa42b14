"""The layers that read channels: what of each could be fitted anew, and why others could not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from depl0.analysis.plan import FROZEN, Plan
from depl0.host.network import canonical_names


@final
@dataclass(frozen=True)
class Reader:
    """A convolution or linear layer that can be fitted anew: nothing else uses its weight."""

    layer: str
    weight: str
    gates: Tensor
    """the gate of every input channel, -1 where there is none"""
    out_gates: Tensor
    """the gate of every output channel"""
    constant: str | None
    """the bias, or else the running mean of the batch norm behind it, that can take up a constant"""
    norm: str | None
    """the batch norm that alone reads the layer's output"""


@final
@dataclass(frozen=True)
class Refused:
    """A layer that is left as it is, and why."""

    layer: str
    reason: str


def find_readers(plan: Plan, host: nn.Module) -> tuple[dict[str, Reader], list[Refused]]:
    """Return the layers that can be fitted anew, by the name of their weight, and those that cannot."""
    parameters = dict(host.named_parameters())
    shared = Counter(canonical_names(host).values())
    calls = Counter(use.out_axis[0] for use in plan.uses)
    norms = Counter(plan.norm_after.values())
    readers: dict[str, Reader] = {}
    refused: dict[str, Refused] = {}
    for use in plan.uses:
        weight = use.out_axis[0]
        reason = None
        if use.in_axis is None:
            reason = "a grouped convolution: its inputs are closed together with its own channels"
        elif use.groups > 1:
            reason = "a grouped convolution: its filters do not see the same inputs"
        elif use.in_axis[1] == 0:
            reason = "a transposed convolution"
        elif calls[weight] > 1:
            reason = f"its weight is used {calls[weight]} times in one pass"
        elif shared[weight] > 1:
            reason = f"its weight is shared under {shared[weight]} names"
        elif not parameters[weight].is_floating_point():
            reason = f"its weight is {parameters[weight].dtype}"
        if reason is not None or use.in_axis is None:
            refused.setdefault(weight, Refused(use.layer, reason or ""))
            continue
        norm = plan.norm_after.get(use.layer)
        readers[weight] = Reader(
            use.layer,
            weight,
            plan.axes.get(use.in_axis, torch.full((use.in_size,), FROZEN)),
            plan.axes.get(use.out_axis, torch.full((use.out_size,), FROZEN)),
            _constant(host, weight, norm if norm is not None and norms[norm] == 1 else None, shared),
            norm,
        )
    return readers, list(refused.values())


def _constant(host: nn.Module, weight: str, norm: str | None, shared: Mapping[str, int]) -> str | None:
    """Name the tensor that a constant in the layer's output can go into."""
    path, _, attribute = weight.rpartition(".")
    bias = f"{path}.bias" if path else "bias"
    if attribute == "weight" and shared.get(bias) == 1 and isinstance(host.get_submodule(path).bias, nn.Parameter):
        return bias
    if norm is None:
        return None
    module = host.get_submodule(norm)
    mean = f"{norm}.running_mean"
    return mean if isinstance(module, _BatchNorm) and module.running_mean is not None and shared[mean] == 1 else None


def added_readers(host: nn.Module, readers: Mapping[str, Reader], added: Mapping[str, bool]) -> list[str]:
    """Return the weights of readers whose output only goes into a sum, through nothing but a norm that is known."""

    def is_known(reader: Reader, normed: bool) -> bool:
        if reader.norm is None:
            return not normed
        norm = host.get_submodule(reader.norm)
        return normed and isinstance(norm, _BatchNorm) and norm.running_var is not None

    return [weight for weight, normed in added.items() if weight in readers and is_known(readers[weight], normed)]


def output_scale(host: nn.Module, reader: Reader) -> Tensor:
    """Return what the norm behind a layer multiplies its outputs by, in evaluation mode; ones if there is none."""
    norm = None if reader.norm is None else host.get_submodule(reader.norm)
    if not isinstance(norm, _BatchNorm) or norm.running_var is None:
        return torch.ones(len(reader.out_gates), dtype=torch.float64)
    gain = torch.rsqrt(norm.running_var.double().cpu() + norm.eps)
    return gain if norm.weight is None else gain * norm.weight.detach().double().cpu()


def in_factors(plan: Plan, reader: Reader, gates: Tensor) -> Tensor:
    """Return what gates multiply the layer's own input weights by; ones, where they multiply something before it."""
    if (reader.weight, 1) not in plan.sites:
        return torch.ones(len(reader.gates))
    return _gate_values(reader.gates, gates)


def out_factors(plan: Plan, reader: Reader, gates: Tensor) -> Tensor:
    """Return what gates multiply the layer's own output rows by."""
    if (reader.weight, 0) not in plan.sites:
        return torch.ones(len(reader.out_gates))
    return _gate_values(reader.out_gates, gates)


def _gate_values(places: Tensor, gates: Tensor) -> Tensor:
    return torch.cat([gates.cpu().float(), torch.ones(1)])[places]  # FROZEN = -1 picks the last entry
