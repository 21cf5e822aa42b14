"""Weights that are computed from stored ones, filter by filter: weight standardisation (NFNet, BiT) and weight norm.

A filter is standardised over all of its weights. If some of its inputs were removed, its mean and variance would
change. Therefore a cut convolution gets another class, :class:`StandardisedConv2d`, which still counts the removed
weights. A weight norm computes w = g·v/‖v‖. Without some of its entries v is shorter, and w would grow. Therefore g is
multiplied by the remaining fraction of the length.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.utils import parametrizations

from depl0.analysis.labels import Normed
from depl0.analysis.propagate import Axis, Propagation, ReplacedModule
from depl0.analysis.recording import Graph, operator_name
from depl0.analysis.rules.operators import CONVOLUTIONS
from depl0.host.calls import Call, CallRecorder
from depl0.replacements.base import ModuleNodes, Replacement, outermost_calls, replace_module


@dataclass(frozen=True)
class Standardisation:
    """The standardisation of a filter: (w - mean) / sqrt(variance + eps) · gain · factor."""

    eps: float
    factor: float
    gain: str | None
    """Name of the parameter with one value for each filter, or None."""


@final
class StandardisedConv2d(nn.Conv2d):
    """A convolution with standardised filters whose mean and variance include the weights that were cut."""

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
        """Number of weights of a filter before any cut."""
        self.register_buffer("removed", conv.weight.new_zeros(conv.out_channels, 2))  # sum and sum of squares
        self.train(conv.training)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise the filters and convolve."""
        weight = self.weight.flatten(1)  # (filters, weights)
        missing, sums, squares = self.total - weight.shape[1], self.removed[:, :1], self.removed[:, 1:]
        mean = (weight.sum(1, keepdim=True) + sums) / self.total
        weight = weight - mean
        variance = weight.square().sum(1, keepdim=True) + squares - 2 * mean * sums + missing * mean.square()
        weight = weight * torch.rsqrt(variance / self.total + self.standardisation.eps) * self.standardisation.factor
        if self.standardisation.gain is not None:
            weight = weight * getattr(self, self.standardisation.gain).flatten(1)
        return F.conv2d(
            x, weight.view_as(self.weight), self.bias, self.stride, self.padding, self.dilation, self.groups
        )


def standardisation_of(module: nn.Module) -> Standardisation | None:
    """Return a convolution's standardisation; None if it has none, or computes anything else besides.

    A copy of the module is run: it must standardise with a batch norm over each filter, and a
    :class:`StandardisedConv2d` made from it must compute the same outputs.
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
                probe.get_parameter(name).fill_(1.0)  # so that the factor of the gain is visible
            calls: list[Call] = []
            with CallRecorder(probe, before=calls.append):
                wanted = probe(x)
        found = _read(probe, calls, x)
        if found is None:
            return None
        with torch.no_grad():
            close = torch.allclose(StandardisedConv2d(probe, found)(x), wanted, rtol=1e-6, atol=1e-8)
    except Exception:  # not such a convolution
        return None
    return found if close else None


def _read(module: nn.Conv2d, calls: list[Call], x: Tensor) -> Standardisation | None:
    norms = [call.arguments for call in calls if call.function is F.batch_norm]
    inputs = [call.arguments["input"] for call in calls if call.name == "conv2d"]
    if len(norms) != 1 or len(inputs) != 1 or inputs[0] is not x:
        return None
    [given], others = norms, _others(module)
    filters, scale, eps = given["input"], given.get("weight"), given.get("eps", 1e-5)
    if tuple(filters.shape) != (1, module.out_channels, module.weight[0].numel()) or not given.get("training"):
        return None
    unknown = given.get("bias") is not None or given.get("running_mean") is not None
    if unknown or len(others) != (scale is not None):
        return None
    if scale is None:
        return Standardisation(float(eps), 1.0, None)
    if module.get_parameter(others[0]).shape != (module.out_channels, 1, 1, 1):
        return None
    return Standardisation(float(eps), float(scale.flatten()[0]), others[0])


def _others(module: nn.Conv2d) -> list[str]:
    return [name for name, _ in module.named_parameters() if name not in {"weight", "bias"}]


@final
class StandardisedReplacement(Replacement):
    """A convolution with standardised filters is analysed as one whose weight is computed from a stored one."""

    spec: Standardisation
    kind: ClassVar[str] = "standardised_conv"
    spec_type: ClassVar[type] = Standardisation

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return the calls of convolutions with standardised filters."""

        def wanted(path: str, node: fx.Node) -> bool:
            own = graph.layer[node] == path and f"{path}.weight" in state.parameters
            return own and state.recognised(cls.kind, path, standardisation_of) is not None

        return outermost_calls(graph, wanted)

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Assign the value of the stored weight to all nodes between it and the convolution."""
        spec, weight = state.recognised(cls.kind, path, standardisation_of), f"{path}.weight"
        value = Normed(weight, None if spec.gain is None else f"{path}.{spec.gain}", 0)
        before = [node for node in nodes if operator_name(node) not in CONVOLUTIONS]
        for node in before:
            state.values[node] = value
        is_cut = isinstance(state.modules[path], StandardisedConv2d)
        axes = ((weight, 0), (weight, 1)) if is_cut else ((weight, 1),)
        state.replaced[path] = ReplacedModule(cls(spec), axes)
        return before

    def before_slicing(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Replace a convolution that is about to lose inputs, and record the removed weights."""
        kept = _kept(path, positions)
        module = model.get_submodule(path)
        if 1 in kept and isinstance(module, nn.Conv2d) and not isinstance(module, StandardisedConv2d):
            replace_module(model, path, StandardisedConv2d(module, self.spec))
        module = model.get_submodule(path)
        if kept and isinstance(module, StandardisedConv2d):
            module.removed = _removed(module, kept).to(module.removed)

    def exact(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> dict[str, Tensor]:
        """Return the sums over removed weights."""
        kept, module = _kept(path, positions), model.get_submodule(path)
        assert isinstance(module, nn.Conv2d)
        is_cut = 1 in kept or (kept and isinstance(module, StandardisedConv2d))
        return {f"{path}.removed": _removed(module, kept)} if is_cut else {}


def _kept(path: str, positions: Mapping[Axis, Tensor]) -> dict[int, Tensor]:
    return {dim: positions[f"{path}.weight", dim] for dim in (0, 1) if (f"{path}.weight", dim) in positions}


def _removed(module: nn.Conv2d, kept: Mapping[int, Tensor]) -> Tensor:
    """Return the sums of removed weights, and of their squares, in float64, if only these positions remain."""
    weight = module.weight.detach().double()
    left = weight.index_select(1, kept[1].to(weight.device)) if 1 in kept else weight
    powers = ((weight, left), (weight.square(), left.square()))
    sums = torch.stack([whole.flatten(1).sum(1) - part.flatten(1).sum(1) for whole, part in powers], 1)
    sums = sums + (module.removed.double() if isinstance(module, StandardisedConv2d) else 0.0)
    return sums.index_select(0, kept[0].to(sums.device)) if 0 in kept else sums


@dataclass(frozen=True)
class _Norm:
    lengths: str
    direction: Tensor
    dim: int

    def share_left(self, kept: Mapping[int, Tensor]) -> Tensor:
        """Return the remaining fraction of every length with these positions, in float64."""
        whole = left = self.direction.detach().double()
        for dim, keep in kept.items():
            if dim != self.dim:
                left = left.index_select(dim, keep.to(left.device))
        others = [dim for dim in range(whole.dim()) if dim != self.dim]
        return (left.square().sum(others, keepdim=True) / whole.square().sum(others, keepdim=True)).sqrt()


def keep_directions(modules: Mapping[str, nn.Module], name: str, kept: Mapping[int, Tensor]) -> None:
    """Reduce the lengths of a direction, before it is cut to these positions."""
    norm = _norm_of(modules, name)
    if norm is not None:
        path, _, attribute = norm.lengths.rpartition(".")
        lengths = getattr(modules[path], attribute)
        with torch.no_grad():
            lengths.copy_(lengths.double() * norm.share_left(kept).view_as(lengths))


def exact_lengths(
    model: nn.Module, scaled: Mapping[str, Tensor], positions: Mapping[tuple[str, int], Tensor]
) -> dict[str, Tensor]:
    """Return the lengths of a network after the cut, before they are rounded to its own precision.

    Rounding does not count as a difference between two networks, but would look like one in a float64 comparison.
    """
    modules, found = dict(model.named_modules(remove_duplicate=False)), {}
    for name in dict.fromkeys(name for name, _ in positions):
        norm = _norm_of(modules, name)
        if norm is None:
            continue
        kept = {dim: keep for (other, dim), keep in positions.items() if other == name}
        lengths = scaled.get(norm.lengths, model.get_parameter(norm.lengths)).detach().double()
        lengths = lengths * norm.share_left(kept).view_as(lengths)
        keep = kept.get(norm.dim)
        found[norm.lengths] = lengths if keep is None else lengths.index_select(norm.dim, keep.to(lengths.device))
    return found


def _norm_of(modules: Mapping[str, nn.Module], name: str) -> _Norm | None:
    """Return the weight norm whose direction has this name."""
    path, _, attribute = name.rpartition(".")
    beside = {"weight_v": "weight_g", "original1": "original0"}.get(attribute)
    module = modules.get(path)
    if module is None or beside is None or not isinstance(getattr(module, beside, None), nn.Parameter):
        return None
    dim = _dim(module, attribute)
    lengths = f"{path}.{beside}" if path else beside
    return None if dim is None else _Norm(lengths, getattr(module, attribute), dim)


def _dim(module: nn.Module, attribute: str) -> int | None:
    """Return the dimension along which the lengths of a weight norm vary; None if there is no weight norm."""
    if attribute == "weight_v":
        hooks = [hook for hook in module._forward_pre_hooks.values() if getattr(hook, "name", "") == "weight"]
        dims = [getattr(hook, "dim", None) for hook in hooks]
        return next((dim for dim in dims if isinstance(dim, int)), None)
    norms = [m for m in module.children() if isinstance(m, parametrizations._WeightNorm)]
    return norms[0].dim if norms else None
