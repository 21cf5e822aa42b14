"""Convolutions that standardise their filters (weight standardisation: NFNet, BiT), and what is left of them when cut.

A filter is standardised over all of its weights. Without some of its inputs its mean and variance would be others, so a
cut convolution is another class, :class:`StandardisedConv2d`, for which the weights that are gone still count.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Standardisation:
    """What is done to a filter: (w - mean) / sqrt(variance + eps) · gain · factor."""

    eps: float
    factor: float
    gain: str | None
    """name of the parameter with one number per filter; None: there is none"""


@final
class StandardisedConv2d(nn.Conv2d):
    """A convolution with standardised filters; the sums of weights that were cut still count in mean and variance."""

    removed: Tensor

    def __init__(self, conv: nn.Conv2d, standardisation: Standardisation) -> None:
        names = ("kernel_size", "stride", "padding", "dilation", "groups")
        options: dict[str, Any] = {name: getattr(conv, name) for name in names}
        super().__init__(conv.in_channels, conv.out_channels, **options, bias=False)
        self.standardisation = standardisation
        self.weight, self.bias = conv.weight, conv.bias
        if standardisation.gain is not None:
            setattr(self, standardisation.gain, getattr(conv, standardisation.gain))
        self.total = conv.weight[0].numel()
        """weights of a filter before any was cut"""
        self.register_buffer("removed", conv.weight.new_zeros(conv.out_channels, 2))  # their sum, and of squares
        self.train(conv.training)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise the filters and convolve."""
        weight = self.weight.flatten(1)  # (filters, weights)
        gone, sums, squares = self.total - weight.shape[1], self.removed[:, :1], self.removed[:, 1:]
        mean = (weight.sum(1, keepdim=True) + sums) / self.total
        weight = weight - mean
        variance = weight.square().sum(1, keepdim=True) + squares - 2 * mean * sums + gone * mean.square()
        weight = weight * torch.rsqrt(variance / self.total + self.standardisation.eps) * self.standardisation.factor
        if self.standardisation.gain is not None:
            weight = weight * getattr(self, self.standardisation.gain).flatten(1)
        return F.conv2d(
            x, weight.view_as(self.weight), self.bias, self.stride, self.padding, self.dilation, self.groups
        )


def removed_after(module: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the sums that count for weights that are gone, in float64, once only these inputs are left."""
    weight = module.weight.detach().double()
    left = weight.index_select(1, inputs.to(weight.device))
    sums = [(whole.flatten(1).sum(1) - kept.flatten(1).sum(1)) for whole, kept in _powers(weight, left)]
    before = module.removed.double() if isinstance(module, StandardisedConv2d) else 0.0
    return torch.stack(sums, 1) + before


def _powers(whole: Tensor, kept: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(whole, kept), (whole.square(), kept.square())]


class _Watch(TorchFunctionMode):
    """Notes the calls of batch norm and convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[inspect.BoundArguments] = []
        self.inputs: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            self.norms.append(inspect.signature(F.batch_norm).bind(*args, **kwargs))
        elif func is torch.conv2d:
            self.inputs.append(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


def standardisation_of(module: nn.Module) -> Standardisation | None:
    """Return how a convolution standardises its filters; None if it does not, or does anything else besides.

    The module is run, on a copy: it must standardise with a batch norm over each filter, and a
    :class:`StandardisedConv2d` made of it must give the same.
    """
    if isinstance(module, StandardisedConv2d):
        return module.standardisation
    plain = not isinstance(module, nn.Conv2d) or type(module).forward is nn.Conv2d.forward
    if plain or not isinstance(module, nn.Conv2d) or isinstance(module.padding, str) or module.padding_mode != "zeros":
        return None
    if next(iter(module.children()), None) is not None:
        return None
    rng = torch.Generator().manual_seed(0)
    size = [d * (k - 1) + 3 for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    probe = copy.deepcopy(module).double().cpu().eval()
    x = torch.randn(1, module.in_channels, *size, generator=rng, dtype=torch.float64)
    try:
        with torch.no_grad():
            for name in _others(probe):
                probe.get_parameter(name).fill_(1.0)  # what the gain is multiplied by is then seen
            with _Watch() as watch:
                wanted = probe(x)
        found = _read(probe, watch, x)
        if found is None:
            return None
        with torch.no_grad():
            close = torch.allclose(StandardisedConv2d(probe, found)(x), wanted, rtol=1e-6, atol=1e-8)
    except Exception:  # no such convolution
        return None
    return found if close else None


def _read(module: nn.Conv2d, watch: _Watch, x: Tensor) -> Standardisation | None:
    if len(watch.norms) != 1 or len(watch.inputs) != 1 or watch.inputs[0] is not x:
        return None
    watch.norms[0].apply_defaults()
    given = watch.norms[0].arguments
    filters, scale, eps = given["input"], given["weight"], given["eps"]
    others = _others(module)
    if tuple(filters.shape) != (1, module.out_channels, module.weight[0].numel()) or not given["training"]:
        return None
    if given["bias"] is not None or given["running_mean"] is not None or len(others) != (scale is not None):
        return None
    if scale is None:
        return Standardisation(float(eps), 1.0, None)
    if module.get_parameter(others[0]).shape != (module.out_channels, 1, 1, 1):
        return None
    return Standardisation(float(eps), float(scale.flatten()[0]), others[0])


def _others(module: nn.Conv2d) -> list[str]:
    return [name for name, _ in module.named_parameters() if name not in {"weight", "bias"}]


def keep_standards(modules: dict[str, nn.Module], name: str, kept: Mapping[int, Tensor]) -> None:
    """Replace a convolution with standardised filters that is about to lose inputs; note what it loses."""
    path, _, attribute = name.rpartition(".")
    module = modules.get(path)
    if attribute != "weight" or not isinstance(module, nn.Conv2d):
        return
    standardisation = standardisation_of(module) if 1 in kept else None
    if standardisation is not None and not isinstance(module, StandardisedConv2d):
        replaced = StandardisedConv2d(module, standardisation)
        for place in [place for place, other in modules.items() if other is module]:
            parent, _, child = place.rpartition(".")
            setattr(modules[parent], child, replaced)
            modules[place] = replaced
        module = replaced
    if isinstance(module, StandardisedConv2d):
        module.removed = _removed(module, kept).to(module.removed)


def exact_sums(model: nn.Module, positions: Mapping[tuple[str, int], Tensor]) -> dict[str, Tensor]:
    """Return the sums that a cut network gets, before they are rounded to its own precision."""
    found = {}
    for path, module in model.named_modules():
        name = f"{path}.weight"
        kept = {dim: positions[name, dim] for dim in (0, 1) if (name, dim) in positions}
        is_cut = isinstance(module, StandardisedConv2d) or (1 in kept and standardisation_of(module) is not None)
        if kept and is_cut and isinstance(module, nn.Conv2d):
            found[f"{path}.removed"] = _removed(module, kept)
    return found


def _removed(module: nn.Conv2d, kept: Mapping[int, Tensor]) -> Tensor:
    inputs = kept.get(1, torch.arange(module.weight.shape[1]))
    sums = removed_after(module, inputs)
    return sums.index_select(0, kept[0].to(sums.device)) if 0 in kept else sums
