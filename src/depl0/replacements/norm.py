"""Norms over all channels that still count the removed channels, as zeros.

A layer norm divides by the number of channels, so with fewer channels it is a different function. If the removed
channels are exactly zero, the original norm's statistics follow from those of the remaining channels. With the
fraction s = remaining / width, and the mean m and variance v of the remaining channels,

    mean = s·m        variance = s·(v + (1 - s)·m²)        mean square = s·(mean square of the remaining channels)

which is exact, and a sum of positive terms. :class:`CountedNorm` replaces a norm in a pruned model, with the same
parameters under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from depl0.analysis.labels import Channels, Opaque, Reason
from depl0.analysis.propagate import Axis, ModuleCall, Propagation, ReplacedModule
from depl0.analysis.recording import Graph, arguments, is_in_place, operator_name, shape_of, stack_of
from depl0.host.copies import isolated_deepcopy
from depl0.replacements.base import ModuleNodes, Replacement, reads_and_gives, replace_module


@dataclass(frozen=True)
class NormSpec:
    """The computation of a norm over all channels."""

    form: Literal["layer", "rms", "group", "response"]
    """Name of the computation.

    Mean and variance over channels; mean square over channels; mean and variance over all but the batch dimension; the
    global response norm of ConvNeXt V2.
    """
    dim: int
    """The dimension of the channels; -1 if it is the last."""
    width: int
    """Number of channels that it counts: those of the original model."""
    eps: float | None
    """None: the default of torch's RMSNorm, the precision of its input."""
    scale: str | None
    """Name of the parameter that is multiplied."""
    shift: str | None
    """Name of the parameter that is added."""
    single: bool = False
    """True if it normalises in float32, whatever the precision of its input."""
    offset: float = 0.0
    """Constant that is added to the scale.

    Gemma's norms store the scale minus one, and multiply before they convert back to the input's precision.
    """

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a norm over {self.width} channels")


@final
class CountedNorm(nn.Module):
    """A norm over channels that counts removed channels as zeros."""

    def __init__(self, norm: nn.Module, spec: NormSpec) -> None:
        super().__init__()
        self.spec = spec
        self.eps = spec.eps  # nn.TransformerEncoderLayer reads it
        for name, parameter in norm._parameters.items():
            self.register_parameter(name, parameter)
        self.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise like the original norm with zeros in the positions of removed channels."""
        spec = self.spec
        values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        scale, shift = (self._along_channels(name, x.dim()) for name in (spec.scale, spec.shift))
        normalised = _normalised(x.float(), spec) if spec.single else _normalised(values, spec)
        if spec.offset:
            assert scale is not None
            scale = scale.to(normalised.dtype) + spec.offset
        elif spec.single:
            normalised = normalised.to(x.dtype)
        result = _affine(spec, values, normalised, scale, shift)
        # like torch's norms: float32 under autocast, but only on GPUs, else the input's precision
        full = x.device.type == "cuda" and torch.is_autocast_enabled("cuda")
        return result if full else result.to(x.dtype)

    def _along_channels(self, name: str | None, ndim: int) -> Tensor | None:
        if name is None:
            return None
        view = [1] * ndim
        view[self.spec.dim] = -1
        vector: Tensor = getattr(self, name)  # a gated call replaces the parameter by a plain tensor
        return vector.view(view)

    def extra_repr(self) -> str:
        """Return the form and the width of the norm for the module's ``repr``."""
        return f"{self.spec.form}, counts {self.spec.width} channels, dim={self.spec.dim}, eps={self.spec.eps}"


def _normalised(x: Tensor, spec: NormSpec) -> Tensor:
    share = x.shape[spec.dim] / spec.width
    if spec.form == "rms":
        eps = torch.finfo(x.dtype).eps if spec.eps is None else spec.eps
        return x * torch.rsqrt(x.square().mean(spec.dim, keepdim=True) * share + eps)
    eps = 0.0 if spec.eps is None else spec.eps
    if spec.form == "response":
        inner = [dim for dim in range(1, x.dim()) if dim != spec.dim % x.dim()]
        response: Tensor = torch.linalg.vector_norm(x, dim=inner, keepdim=True)
        return x * (response / (response.mean(spec.dim, keepdim=True) * share + eps))
    dims = [spec.dim] if spec.form == "layer" else list(range(1, x.dim()))
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    variance = share * (variance + (1 - share) * mean.square())
    return (x - share * mean) * torch.rsqrt(variance + eps)


def _affine(spec: NormSpec, x: Tensor, normalised: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    result = normalised if scale is None else normalised * scale
    if shift is not None:
        result = result + shift
    return x + result if spec.form == "response" else result


# -- recognition of norms by their outputs -------------------------------------------------------------------------


def recognise(module: nn.Module, dim: int, ndim: int, width: int, epsilons: Iterable[float | None]) -> NormSpec | None:
    """Return the spec of a module that is a norm over all channels, or None.

    The implementation does not matter. A module is a known norm if it computes the same values, in float64, with
    random parameters on random inputs. If it normalises in float32 (language models), the values must be the same up to
    rounding, on inputs so small that eps matters too. ``dim`` is the channel dimension of an input of ``ndim``
    dimensions.
    """
    if isinstance(module, CountedNorm):
        return module.spec
    parameters = [name for name, parameter in module._parameters.items() if parameter is not None]
    shapes = [module.get_parameter(name).shape for name in parameters]
    if any(True for _ in module.children()) or any(True for _ in module.buffers()):
        return None
    if any([size for size in shape if size > 1] != [width] for shape in shapes):
        return None
    if len(parameters) > 2 or module._forward_hooks or module._forward_pre_hooks:
        return None
    rng = torch.Generator().manual_seed(0)
    try:
        tried = isolated_deepcopy(module).double()
        shape = [2, *(3 + place for place in range(1, ndim))]
        shape[dim] = width
        x = torch.randn(shape, generator=rng, dtype=torch.float64) + 0.5
        with torch.no_grad():
            for parameter in tried.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=rng) + 0.5)
            wanted = [[tried.train(mode)(inputs) for mode in (True, False)] for inputs in (x, x / 100)]
            possible = list(_possible(dim, ndim, width, tuple(dict.fromkeys(epsilons)), parameters))
            possible += [replace(spec, offset=1.0) for spec in possible if spec.form == "rms" and spec.scale]
            for spec in [*possible, *(replace(spec, single=True) for spec in possible)]:
                module = CountedNorm(tried, spec)
                found = [module(inputs) for inputs in (x, x / 100)]
                if all(_same(w, f, spec.single) for both, f in zip(wanted, found, strict=True) for w in both):
                    return spec
    except Exception:  # it does not accept this input, so it is not a norm
        return None
    return None


def _possible(
    dim: int, ndim: int, width: int, epsilons: tuple[float | None, ...], parameters: list[str]
) -> Iterator[NormSpec]:
    place = -1 if dim == ndim - 1 else dim
    names: list[tuple[str | None, str | None]] = [(None, None)]
    if len(parameters) == 1:
        names = [(parameters[0], None)]
    elif parameters:
        names = [(parameters[0], parameters[1]), (parameters[1], parameters[0])]
    forms: list[Literal["layer", "rms", "group", "response"]] = ["layer", "rms", "group", "response"]
    for eps, (scale, shift), form in product(epsilons, names, forms):
        spec = NormSpec(form, 1 if form == "group" else place, width, eps, scale, shift)
        usable = {"layer": True, "rms": shift is None, "group": dim == 1 and ndim > 2, "response": ndim > 2}[form]
        if usable and (eps is not None or form == "rms"):
            yield spec


def _same(wanted: Any, found: Tensor, single: bool) -> bool:
    if not isinstance(wanted, Tensor) or wanted.shape != found.shape:
        return False
    relative, absolute = (3e-6, 1e-6) if single else (1e-9, 1e-10)
    return torch.allclose(wanted, found, relative, absolute)


# -- the kind --------------------------------------------------------------------------------------------------------

_SIGNS = {"layer_norm", "rms_norm", "group_norm", "mean", "sum", "var", "std", "var_mean", "norm", "linalg_vector_norm"}
"""Operators of which a norm contains at least one."""


@final
class NormReplacement(Replacement):
    """A module that is a norm over all channels is analysed as a whole, not operator by operator.

    Its channels are prunable if they are zeros in the input.
    """

    spec: NormSpec
    kind: ClassVar[str] = "norm"
    description: ClassVar[str] = "norms over all channels that still count removed channels, as zeros (CountedNorm)"
    spec_type: ClassVar[type] = NormSpec

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return the calls of innermost modules that may be norms."""
        calls: dict[str, list[fx.Node]] = {}
        for node in graph.nodes:
            stack = stack_of(node)
            if node.op == "call_function" and stack:
                calls.setdefault(stack[-1][0], []).append(node)
        signed = [nodes for nodes in calls.values() if any(operator_name(node) in _SIGNS for node in nodes)]
        return [(graph.layer[nodes[0]], nodes) for nodes in signed]

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Assign the values of a call of a norm."""
        module = state.modules.get(path)
        sources, results = reads_and_gives(graph, nodes)
        aliases = {node for node in nodes if _is_source_itself(node, sources)}
        results = [node for node in results if node not in aliases] or nodes[-1:]  # the result is not used
        if module is None or len(sources) != 1 or len(results) != 1 or any(is_in_place(node) for node in nodes):
            return ()
        source, result = sources.pop(), results[0]
        value, ndim = state.values.get(source), len(shape_of(source))
        if not isinstance(value, Channels) or shape_of(source) != shape_of(result):
            return ()
        known = state.replaced.get(path)
        if known is not None and isinstance(known.replacement, cls):  # another graph, or another call
            found: NormSpec | None = known.replacement.spec
        else:
            found, known = recognise(module, value.dim, ndim, len(value.labels), _epsilons(nodes)), None
        if found is None or found.dim % ndim != value.dim:
            return ()
        axes = {}
        for name in (found.scale, found.shift):
            if name is not None:
                shape = tuple(module.get_parameter(name).shape)
                axes[name] = (
                    state.name_of(module.get_parameter(name)),
                    next((dim for dim, size in enumerate(shape) if size > 1), 0),
                )
                state.bind(axes[name][0], {axes[name][1]: value.labels}, len(shape), path)
        for node in nodes:
            state.values[node] = value if node in aliases else Opaque(Reason("is inside of a norm", path))
        state.values[result] = Channels(value.dim, value.labels)
        earlier = [] if known is None else known.labels
        state.replaced[path] = ReplacedModule(cls(found), labels=[*earlier, value.labels])
        state.module_calls[result] = _call(path, found, source, axes)
        return nodes

    def cut(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Replace a norm that has lost channels, or that may have lost some if it has no parameters."""
        module, name = model.get_submodule(path), self.spec.scale or self.spec.shift
        narrower = name is None or module.get_parameter(name).numel() < self.spec.width
        if narrower and not isinstance(module, CountedNorm):
            replace_module(model, path, CountedNorm(module, self.spec))


def _call(path: str, spec: NormSpec, source: fx.Node, axes: Mapping[str, Axis]) -> ModuleCall:
    """Return a call whose gates keep a closed channel, a zero input of the norm, zero in the output."""
    unprunable = Reason("a norm over channels that cannot be made zero", path)
    if spec.form in {"rms", "response"}:  # zero times any scale is zero: only the shift must be multiplied
        shift = () if spec.shift is None else (axes[spec.shift],)
        return ModuleCall(path, source, unprunable, (source,), shift)
    if spec.scale is None:
        return ModuleCall(path, source, unprunable, None)
    return ModuleCall(path, source, unprunable, (), tuple(axes.values()))


def _is_source_itself(node: fx.Node, sources: set[fx.Node]) -> bool:
    """Return True if a node is a cast without effect: the recorder identifies it with its source, outside as well."""
    source = node.args[0] if node.args else None
    if operator_name(node) != "to" or source not in sources or not isinstance(source, fx.Node):
        return False
    return bool(node.meta["val"].dtype == source.meta["val"].dtype)


def _epsilons(nodes: list[fx.Node]) -> list[float | None]:
    """Return the small constants in a module's code, one of which is the norm's eps."""
    found: list[float | None] = []
    for node in nodes:
        if operator_name(node) in {"rms_norm", "layer_norm", "group_norm"}:
            found.append(arguments(node)["eps"])
        else:
            found += [leaf for leaf in pytree.tree_leaves((node.args, dict(node.kwargs))) if isinstance(leaf, float)]
    return [eps for eps in found if eps is None or 0 < eps < 0.1]
