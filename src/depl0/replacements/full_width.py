"""Small modules that use all channels at once: they get zeros for the removed channels.

A mean or a maximum over channels, or a convolution along them (ECA, CBAM), is a different function if channels are
missing. If such a module costs almost nothing, the pruned model runs it at its full width: zeros are inserted at the
positions of removed channels, the module's own code runs, and its outputs at those positions are dropped. The module
stays the same object, with all its names; only its class is changed to one that does this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from depl0.analysis.labels import Channels, Opaque, Reason
from depl0.analysis.propagate import Axis, ModuleCall, Propagation, ReplacedModule, channel_axis
from depl0.analysis.recording import Graph, has_known_size, is_in_place, operator_name, shape_of
from depl0.analysis.rules.operators import LAYERS
from depl0.replacements.base import ModuleNodes, Replacement, outermost_calls, reads_and_gives

_SMALL = 512
"""Largest number of weights, without vectors, of a small module."""


@dataclass(frozen=True)
class WidthSpec:
    """The channels that a module reads and returns."""

    width: int
    """Number of channels in the original model."""
    dim: int
    """Channel dimension of the input."""
    out_dim: int | None
    """Channel dimension of the output; None if it has no channels."""
    keeps_zeros: bool
    """True if a zero input channel becomes a zero output channel."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.dim < 0 or (self.out_dim or 0) < 0:
            raise ValueError(f"{self} is not the width of a module")


class FullWidth:
    """Marks modules that run at their full width."""

    depl0_width: WidthSpec
    depl0_kept: Tensor
    """Positions of the remaining channels in the original model."""


@cache
def full_width_class(base: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of a module's class that inserts zeros at the positions of removed channels."""

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        spec, places = self.depl0_width, self.depl0_kept.to(x.device)
        source = torch.full((spec.width,), x.shape[spec.dim], device=x.device)  # the channel of zeros at the end
        source = source.scatter(0, places, torch.arange(len(places), device=x.device))
        zeros = torch.zeros_like(x.narrow(spec.dim, 0, 1))
        x = torch.cat([x, zeros], spec.dim).index_select(spec.dim, source)
        outputs = base.forward(self, x, *args, **kwargs)
        return outputs if spec.out_dim is None else outputs.index_select(spec.out_dim, places)

    def extra_repr(self: Any) -> str:
        said = base.extra_repr(self)
        kept = f"{len(self.depl0_kept)} of {self.depl0_width.width} channels, the others are zeros"
        return f"{said}{', ' if said else ''}{kept}"

    def reduce(self: Any, protocol: Any) -> Any:  # a class created at run time cannot be found by its name
        reduced: Any = base.__reduce_ex__(self, max(int(protocol), 2))
        return new_full_width, (base, *reduced[1][1:]), *reduced[2:]

    members = {"forward": forward, "extra_repr": extra_repr, "__reduce_ex__": reduce}
    return type(f"FullWidth{base.__name__}", (FullWidth, base), {**members, "__doc__": base.__doc__})


def new_full_width(base: type[nn.Module], *args: Any) -> Any:
    """Create an unpickled or copied module, without its contents."""
    kind = full_width_class(base)  # type: ignore[arg-type]
    return kind.__new__(kind, *args)


def keep_full_width(module: nn.Module, spec: WidthSpec, keep: Tensor) -> None:
    """Make a module read only these of its channels, in place, and treat the others as zeros."""
    if not isinstance(module, FullWidth):
        module.__class__ = full_width_class(type(module))  # type: ignore[arg-type]
        vars(module).update(depl0_width=spec, depl0_kept=torch.arange(spec.width))
    places = vars(module)["depl0_kept"]
    vars(module)["depl0_kept"] = places[keep.to(places.device)]


@final
class FullWidthReplacement(Replacement):
    """Small modules that block pruning are run at their full width, if removed channels would be zero inputs.

    Their outputs are those of the original model, whatever the module computes.
    """

    spec: WidthSpec
    kind: ClassVar[str] = "full_width"
    description: ClassVar[str] = "modules that look at all channels at once and get zeros for removed ones (FullWidth)"
    spec_type: ClassVar[type] = WidthSpec
    rank: ClassVar[int] = 1  # only if no other kind applies

    @classmethod
    def second_pass(cls, state: Propagation) -> set[str]:
        """Return the small modules that block outside channels; of several around an operator, the innermost."""
        found = {path for path, module in state.modules.items() if isinstance(module, FullWidth)}
        for path, owners in state.blocking.items():
            for candidate in (path, path.rpartition(".")[0]):
                outside = any(owner != candidate and not owner.startswith(f"{candidate}.") for owner in owners)
                if candidate and outside and _is_small(state.modules.get(candidate)):
                    found.add(candidate)
                    break
        return {path for path in found if not any(path.startswith(f"{other}.") for other in found)}

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return the calls of the modules that the second pass handles."""
        wanted = state.second_pass.get(cls.kind, set())
        return outermost_calls(graph, lambda path, _: path in wanted) if wanted else ()

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Assign the values of a module's call at its full width."""
        sources, results = reads_and_gives(graph, nodes)
        if len(sources) != 1 or len(results) != 1 or not isinstance(results[0].meta.get("val"), Tensor):
            return ()
        if any(is_in_place(node) or not has_known_size(node) for node in nodes):
            return ()
        source, result = sources.pop(), results[0]
        value = state.values[source]
        if not isinstance(value, Channels):
            return ()
        whole = Reason("is run with all channels", path)
        for node in nodes:
            state.values[node] = Opaque(whole)
            if operator_name(node) in LAYERS:
                channels = shape_of(node)[-1 if operator_name(node) == "linear" else 1]
                state.refused.setdefault(graph.layer[node], (len(state.layers), channels, whole))
            for stored in node.all_input_nodes:
                if stored in graph.tensors:
                    state.fix_stored(stored, path)
        shape, width = shape_of(result), len(value.labels)
        alike = len(shape) == len(shape_of(source)) and shape[value.dim] == width
        if alike:
            state.values[result] = Channels(value.dim, value.labels)
        axis, module = channel_axis(path), state.modules[path]
        state.labels.join(state.axes.setdefault(axis, value.labels), value.labels)
        is_factor = operator_name(result) == "mul" and source in result.all_input_nodes
        found = WidthSpec(width, value.dim, value.dim if alike else None, alike and is_factor)
        spec = module.depl0_width if isinstance(module, FullWidth) else found
        state.replaced[path] = ReplacedModule(cls(spec), (axis,))
        unprunable = Reason("all channels are read, and they cannot be made zero", path)
        state.module_calls[result] = ModuleCall(path, source, unprunable, (source,) if spec.keeps_zeros else None)
        return nodes

    def channel_axes(self, path: str) -> dict[Axis, int]:
        """Return the channels that the module reads."""
        return {channel_axis(path): self.spec.width}

    def cut(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Make the module read only the remaining channels."""
        if channel_axis(path) in positions:
            keep_full_width(model.get_submodule(path), self.spec, positions[channel_axis(path)])


def _is_small(module: nn.Module | None) -> bool:
    if module is None or module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) in {nn.Sequential, nn.ModuleList, nn.ModuleDict} or parametrize.is_parametrized(module):
        return False
    matrices = [p.numel() for p in module.parameters() if sum(size > 1 for size in p.shape) > 1]
    return sum(matrices) <= _SMALL
