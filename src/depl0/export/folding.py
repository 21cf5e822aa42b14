"""Batch norm folded into the layer before it, in a recorded graph: one multiplication less for every value.

In evaluation a batch norm is y = s·x + t with s = γ / √(σ² + ε) and t = β − s·μ, and s can as well be multiplied into
the weights that made x. That is exact where the layer's output is read by nothing else. The graph is a recording: the
network it was made from is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from depl0._util.precision import as_precise_as_possible, cast
from depl0.analysis.recording import arguments, operator_name
from depl0.equivalence.comparison import FOLDING, relative_error
from depl0.errors import ExportError

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@dataclass(frozen=True)
class _Pair:
    """A layer and the batch norm that reads it."""

    layer: fx.Node
    norm: fx.Node
    names: Mapping[str, str]
    """their tensors in the state, as far as they have them: weight, bias, scale, shift, mean, var"""


def fold_batch_norms(program: ExportedProgram) -> int:
    """Fold every batch norm where that is exact, in place; return how many there were.

    The graph is run before and after, in float64, and must give the same; only then are the new weights rounded to the
    network's own precision.
    """
    pairs = _pairs(program)
    if not pairs:
        return 0
    before = _outputs(program, program.state_dict)
    folded: dict[str, Tensor] = {}
    for pair in pairs:
        folded.update(_fold(program, pair))
    program.graph.lint()
    program.graph_module.recompile()
    _compare(before, _outputs(program, {**program.state_dict, **folded}))
    for name, value in folded.items():
        program.state_dict[name] = _like(program.state_dict[name], value)
    drop_unused(program)
    return len(pairs)


# -- what can be folded ------------------------------------------------------------------------------------------------


def _tensor_names(program: ExportedProgram) -> dict[str, str]:
    """Map the placeholders of parameters and buffers to their names in the state."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers}


def _pairs(program: ExportedProgram) -> list[_Pair]:
    names = _tensor_names(program)
    found = []
    for norm in program.graph.nodes:
        if operator_name(norm) != "batch_norm" or arguments(norm)["training"]:
            continue
        pair = _pair(norm, names)
        if pair is not None and all(name in program.state_dict for name in pair.names.values()):
            found.append(pair)
    return found


def _pair(norm: fx.Node, names: Mapping[str, str]) -> _Pair | None:
    """Return the layer of a batch norm with all their tensors, if nothing else reads any of it."""
    of_norm = arguments(norm)
    layer = of_norm["input"]
    if operator_name(layer) not in (*_CONVOLUTIONS, *_TRANSPOSED, "linear") or len(layer.users) != 1:
        return None
    if operator_name(layer) == "linear" and layer.meta["val"].dim() != 2:
        return None  # the norm's channels are the second dimension, the layer's are the last
    of_layer = arguments(layer)
    tensors = {
        "weight": of_layer["weight"],
        "bias": of_layer["bias"],
        "scale": of_norm["weight"],
        "shift": of_norm["bias"],
        "mean": of_norm["running_mean"],
        "var": of_norm["running_var"],
    }
    if any(tensors[needed] is None for needed in ("weight", "mean", "var")):
        return None
    for node in tensors.values():
        if node is not None and (node.name not in names or len(node.users) != 1):
            return None  # computed in forward, or shared with another layer
    return _Pair(layer, norm, {key: names[node.name] for key, node in tensors.items() if node is not None})


# -- folding -----------------------------------------------------------------------------------------------------------


def _fold(program: ExportedProgram, pair: _Pair) -> dict[str, Tensor]:
    """Take the norm out of the graph; return the layer's new tensors, in float64.

    A layer without a bias takes over a vector of the norm as its own.
    """
    of_norm, names = arguments(pair.norm), pair.names
    own = {key: program.state_dict[name].double() for key, name in names.items()}
    scale = (own["var"] + of_norm["eps"]).rsqrt() * own.get("scale", 1)
    bias = (own.get("bias", 0) - own["mean"]) * scale + own.get("shift", 0)
    if "bias" not in names:
        _set_bias(pair.layer, of_norm["bias" if "shift" in names else "running_mean"])
    pair.norm.replace_all_uses_with(pair.layer)
    program.graph.erase_node(pair.norm)
    carrier = names.get("bias") or names.get("shift") or names["mean"]
    return {names["weight"]: own["weight"] * _along_outputs(pair.layer, own["weight"], scale), carrier: bias}


def _along_outputs(layer: fx.Node, weight: Tensor, scale: Tensor) -> Tensor:
    """Shape one factor per output channel so that it multiplies the weight."""
    if operator_name(layer) not in _TRANSPOSED:
        return scale.view(-1, *[1] * (weight.dim() - 1))
    groups = int(arguments(layer)["groups"])  # weight: (in, out / groups, …)
    by_group = scale.view(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
    return by_group.reshape(weight.shape[0], -1, *[1] * (weight.dim() - 2))


def _like(old: Tensor, value: Tensor) -> Tensor:
    value = value.to(old.dtype).detach()
    return torch.nn.Parameter(value, old.requires_grad) if isinstance(old, torch.nn.Parameter) else value


def _set_bias(layer: fx.Node, bias: fx.Node) -> None:
    """Give a layer that had no bias this one."""
    names = [argument.name for argument in layer.target._schema.arguments]  # type: ignore[union-attr]
    place = names.index("bias")
    values = arguments(layer)
    if len(layer.args) > place:
        layer.update_arg(place, bias)
    else:
        missing = [values[name] for name in names[len(layer.args) : place]]
        layer.args = (*layer.args, *missing, bias)
        layer.kwargs = {key: value for key, value in layer.kwargs.items() if key not in names[: place + 1]}


def drop_unused(program: ExportedProgram) -> None:
    """Take parameters and buffers that nothing reads any more out of the program."""
    names = _tensor_names(program)
    unused = {node.name for node in program.graph.nodes if node.op == "placeholder" and not node.users} & names.keys()
    for node in list(program.graph.nodes):
        if node.op == "placeholder" and node.name in unused:
            program.graph.erase_node(node)
    specs = program.graph_signature.input_specs
    specs[:] = [spec for spec in specs if getattr(spec.arg, "name", None) not in unused]
    still = set(_tensor_names(program).values())
    for name in list(program.state_dict):
        if name not in still:
            del program.state_dict[name]
    program.graph_module.recompile()


# -- proof -------------------------------------------------------------------------------------------------------------


def _outputs(program: ExportedProgram, state: Mapping[str, Tensor]) -> tuple[torch.dtype | None, list[Tensor]]:
    """Run the graph with these tensors on random inputs, in float64, or in its own precision if it insists on that."""
    with torch.no_grad():
        outputs, dtype = as_precise_as_possible(lambda d: program.graph_module(*_arguments(program, state, d)))
    return dtype, [output for output in pytree.tree_leaves(outputs) if isinstance(output, Tensor)]


def _arguments(program: ExportedProgram, state: Mapping[str, Tensor], dtype: torch.dtype | None) -> list[object]:
    """Return a value for every placeholder: parameters and buffers, constants, then random inputs."""
    rng = torch.Generator().manual_seed(0)
    tensors, given = _tensor_names(program), iter(pytree.tree_leaves(program.example_inputs))
    values: list[object] = []
    for spec in program.graph_signature.input_specs:
        name = getattr(spec.arg, "name", "")
        target = tensors.get(name, spec.target)
        if target is not None:
            value = state[target] if target in state else program.constants[target]
        else:
            value = next(given)
            if isinstance(value, Tensor) and value.is_floating_point():
                value = torch.randn(value.shape, generator=rng, dtype=torch.float64).to(value.dtype)
        is_number = isinstance(value, Tensor) and value.is_floating_point()
        values.append(cast(value, dtype).clone() if is_number else value)
    return values


def _compare(before: tuple[torch.dtype | None, list[Tensor]], after: tuple[torch.dtype | None, list[Tensor]]) -> None:
    allowed = FOLDING.at(before[0])
    for wanted, found in zip(before[1], after[1], strict=True):
        error = relative_error(wanted, found)
        if not error <= allowed:
            raise ExportError(
                f"folding batch norms changes the network's outputs by {error:.2g} (allowed {allowed:g}).",
                hint="the network's weights are not finite, or its batch norms divide by almost nothing.",
            )
