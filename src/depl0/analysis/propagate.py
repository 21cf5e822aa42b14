"""The state of the analysis while labels are propagated through the graphs, and the operations of rules on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, fx, nn

from depl0.analysis.labels import (
    Channels,
    Derived,
    Labels,
    Opaque,
    Reason,
    Stored,
    Value,
    labels_along,
    varying_dims,
)
from depl0.analysis.recording import Graph, shape_of

if TYPE_CHECKING:
    from depl0.analysis.rules.scores import ScoreCall
    from depl0.replacements.base import Replacement

Axis: TypeAlias = tuple[str, int]
"""One dimension of one parameter or buffer."""


def channel_axis(path: str) -> Axis:
    """Return a name for the input channels of a module, like an axis of a parameter."""
    return f"{path}.(channels)", 0


def is_channel_axis(name: str) -> bool:
    """Return True if a name comes from :func:`channel_axis` and is not that of a tensor."""
    return name.endswith(".(channels)")


@dataclass(frozen=True)
class LayerUse:
    """One call of a convolution or linear layer: its axes, and its cost."""

    layer: str
    out_axis: Axis
    in_axis: Axis | None
    """None for grouped convolutions that lose whole groups: their inputs are removed with their outputs."""
    out_size: int
    in_size: int
    macs_per_pair: int
    """Multiply-accumulates for one output channel and one input channel (grouped: for one output channel)."""
    mode: str
    path: str
    """The module that makes the call; not the layer itself if other code uses its weight."""
    groups: int = 1
    """Number of groups of a grouped convolution that loses the same positions of every group."""


@dataclass(frozen=True)
class WeighedProduct:
    """Multiply-accumulates between activations, for every one of some channels."""

    labels: Tensor
    macs: float


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module that is analysed as a whole, and the sites of gates that make closed channels zero."""

    path: str
    source: fx.Node
    """The input; closed channels must be zero there."""
    otherwise: Axis | Reason
    """Fallback if they cannot be made zero: the input axis to gate instead, or the reason why they are unprunable."""
    zero_sources: tuple[fx.Node, ...] | None
    """Nodes that must be zero so that closed channels of the result are zero; None if they cannot be made zero."""
    out_axes: tuple[Axis, ...] = ()
    """Axes that gates of the result multiply."""
    inner_axes: tuple[Axis, ...] = ()
    """Axes that gates of channels inside the module multiply."""


@dataclass(frozen=True)
class ReplacedModule:
    """A module that needs a replacement if any of these axes or labels loses channels."""

    replacement: Replacement
    axes: tuple[Axis, ...] = ()
    labels: list[Tensor] = field(default_factory=list)


class Propagation:
    """Labels of all tensors in all graphs of one network; shared parameters connect the graphs."""

    def __init__(self, model: nn.Module, before: Propagation | None = None) -> None:
        """``before`` is the state after a first pass, so that modules are recognised only once."""
        self.labels = Labels()
        self.modules = dict(model.named_modules())
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.parameters = set(self._names.values())
        self.values: dict[fx.Node, Value] = {}
        self.axes: dict[Axis, Tensor] = {}
        self.fixed: dict[Axis, Reason] = {}
        self.layers: list[LayerUse] = []
        self.refused: dict[str, tuple[int, int, Reason]] = {}
        """Layer that cannot be sliced -> (its index among the layers, its channels, the reason)."""
        self.added_to_shortcut: list[Tensor] = []
        self.literal_size_nodes: list[tuple[Graph, fx.Node]] = []
        """Nodes whose sizes may be literals in the user's code; only a trial run can decide this."""
        self.replaced: dict[str, ReplacedModule] = {}
        """Modules that were analysed as a whole."""
        self.module_calls: dict[fx.Node, ModuleCall] = {}
        """Result of a call of such a module -> the call."""
        self.second_pass: dict[str, set[str]] = {}
        """Kind of replacement -> the modules that it handles in a second pass."""
        self._recognised: dict[tuple[str, str], Any] = {} if before is None else before._recognised
        self.products: list[WeighedProduct] = []
        self.score_calls: dict[fx.Node, ScoreCall] = {}
        """Products of activations that have channels."""
        self.blocking: dict[str, set[str]] = {}
        """Modules whose operators make channels unprunable -> the layers that output the channels."""

    def name_of(self, parameter: nn.Parameter) -> str:
        """Return the first name of a parameter."""
        return self._names[id(parameter)]

    def recognised(self, kind: str, path: str, recognise: Callable[[nn.Module], Any]) -> Any:
        """Return the result of ``recognise`` for a module; it is computed once for every module."""
        if path not in self.modules:
            return None
        if (kind, path) not in self._recognised:
            self._recognised[kind, path] = recognise(self.modules[path])
        return self._recognised[kind, path]

    # -- used by the rules ---------------------------------------------------------------------------------------

    def bind(self, name: str, dims: dict[int, Tensor], ndim: int, layer: str) -> None:
        """Tie dimensions of a stored tensor to labels; its other dimensions must keep their size."""
        for dim in range(ndim):
            if dim not in dims:
                self.fixed.setdefault((name, dim), Reason("a parameter is used in another way too", layer))
                continue
            known = self.axes.setdefault((name, dim), dims[dim])
            self.labels.join(known, dims[dim])

    def mark_unprunable(self, value: Value, reason: Reason) -> None:
        """Mark all channels of a value as unprunable."""
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Channels):
                self.labels.mark_unprunable(part.labels, reason)

    def note_blocking(self, value: Value, path: str) -> None:
        """Record that an operator in a module makes channels unprunable."""
        if isinstance(value, Channels):
            owners = {self.labels.owner(root) for root in set(self.labels.roots(value.labels).tolist())}
            self.blocking.setdefault(path, set()).update(owners)

    def channels_at(self, node: fx.Node, dim: int, layer: str) -> Tensor:
        """Return the labels of a tensor along ``dim``; unprunable ones if its channels are not along ``dim``."""
        value, size = self.values[node], shape_of(node)[dim]
        if isinstance(value, Channels) and value.dim == dim:
            return value.labels
        reason = Reason("its channels lie in another dimension than the layer expects", layer)
        if isinstance(value, Opaque):
            reason = value.reason
        else:
            self.note_blocking(value, layer)
        self.mark_unprunable(value, reason)
        self.fix_stored(node, layer)
        return self.labels.mint_unprunable(size, reason)

    def output_of(self, labels: Tensor, dim: int, layer: str) -> Channels | Opaque:
        """Return the value of a tensor with these labels; a single channel cannot be removed."""
        if len(labels) > 1:
            return Channels(dim, labels)
        reason = Reason("a single channel", layer)
        self.labels.mark_unprunable(labels, reason)
        return Opaque(reason)

    def recover(self, full: Tensor, layer: str) -> Channels | Opaque:
        """Turn a label tensor back into channels along one dimension."""
        dims = varying_dims(full)
        if len(dims) == 1:
            return Channels(dims[0], labels_along(full, dims[0]))
        reason = Reason("channels are mixed with another dimension", layer)
        if not dims and full.numel():
            found = self.labels.reason(int(full.reshape(-1)[0]))
            reason = found or Reason("a single channel", layer)
        self.labels.mark_unprunable(full.unique(), reason)
        return Opaque(reason)

    def full_labels(self, node: fx.Node, layer: str) -> Tensor:
        """Return a label for every element of a node's tensor."""
        value, shape = self.values[node], shape_of(node)
        if isinstance(value, Channels):
            return value.full(shape)
        if isinstance(value, (Stored, Derived)):
            self.fix_stored(node, layer)
        reason = value.reason if isinstance(value, Opaque) else Reason("meets a constant", layer)
        return self.labels.mint_unprunable(1, reason).reshape([1] * len(shape)).expand(shape)

    def fix_stored(self, node: fx.Node, layer: str) -> None:
        """Mark a stored tensor as used in a way that fixes all of its dimensions."""
        value, reason = self.values[node], Reason("a parameter is used in another way too", layer)
        if isinstance(value, Stored):
            for dim in range(len(shape_of(node))):
                self.fixed.setdefault((value.name, dim), reason)
        elif isinstance(value, Derived):
            for name, dim, _ in value.axes:
                self.fixed.setdefault((name, dim), reason)

    def vector_dim(self, node: fx.Node) -> int | None:
        """Return the one dimension of a stored vector's view that is longer than one."""
        dims = [dim for dim, size in enumerate(shape_of(node)) if size > 1]
        return dims[0] if len(dims) == 1 else None


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """Return the distinct inputs of a node that are tensors."""
    return [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]


def positions(shape: tuple[int, ...], skip: int) -> int:
    """Return the product of all sizes except that of dimension ``skip``."""
    return math.prod(size for dim, size in enumerate(shape) if dim != skip % len(shape))
