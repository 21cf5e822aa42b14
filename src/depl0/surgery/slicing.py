"""Cut a network: remove index sets from parameters and buffers, update attributes, and replace modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from depl0.analysis.plan import NO_GATE, Plan
from depl0.analysis.propagate import Axis, is_channel_axis
from depl0.host.network import canonical_names
from depl0.replacements.base import Replacement


def kept_gates(plan: Plan, open_gates: Tensor, score: Tensor) -> Tensor:
    """Return a mask of the gates whose channels are kept: the open ones, and the best one of every empty axis."""
    kept = open_gates.clone()
    for gates in plan.axes.values():
        if bool((gates == NO_GATE).any()) or bool(kept[gates].any()):
            continue
        kept[gates[score[gates].argmax()]] = True
    return kept


def kept_positions(plan: Plan, kept: Tensor) -> dict[Axis, Tensor]:
    """Return the kept positions of every axis that loses some."""
    with_no_gate = torch.cat([kept, torch.ones(1, dtype=torch.bool)])  # NO_GATE = -1 picks the last entry
    positions = {axis: with_no_gate[gates].nonzero().flatten() for axis, gates in plan.axes.items()}
    return {axis: keep for axis, keep in positions.items() if len(keep) < len(plan.axes[axis])}


def cut_to(model: nn.Module, positions: Mapping[Axis, Tensor], replacements: Mapping[str, Replacement]) -> None:
    """Keep only the given positions of a network's axes, in place, and replace the modules that need it."""
    slice_module(model, positions)
    for path, replacement in sorted(replacements.items(), key=lambda entry: entry[1].rank):
        replacement.cut(model, path, positions)


def slice_module(model: nn.Module, positions: Mapping[Axis, Tensor]) -> None:
    """Keep only these positions of these axes, in place. Tied tensors stay tied; attributes that count are updated."""
    by_tensor: dict[str, dict[int, Tensor]] = {}
    for (name, dim), keep in positions.items():
        by_tensor.setdefault(name, {})[dim] = keep
    aliases: dict[str, list[str]] = {}
    for name, canonical in canonical_names(model).items():
        aliases.setdefault(canonical, []).append(name)
    modules = dict(model.named_modules(remove_duplicate=False))
    touched: dict[nn.Module, None] = {}
    groups: dict[nn.Module, int] = {}
    for canonical, dims in by_tensor.items():
        if is_channel_axis(canonical):
            continue
        if canonical not in aliases:
            _set_numbers(modules, canonical, {dim: len(keep) for dim, keep in dims.items()})
            continue
        smaller: Tensor | None = None
        for name in aliases[canonical]:
            module_path, _, attribute = name.rpartition(".")
            module = modules[module_path]
            if smaller is None:
                smaller = _smaller(getattr(module, attribute), dims)
            setattr(module, attribute, smaller)
            touched[module] = None
            if 0 in dims and smaller.dim() > 2 and isinstance(module, _ConvNd):
                groups[module] = _groups_left(module, dims[0])
    for module in touched:
        _correct_attributes(module, groups.get(module))


def _set_numbers(modules: Mapping[str, nn.Module], name: str, values: Mapping[int, int]) -> None:
    """Set an attribute that counts channels, an integer or a sequence of them, to smaller values at these places."""
    path, _, attribute = name.rpartition(".")
    before = vars(modules[path])[attribute]
    several = isinstance(before, (list, tuple))
    numbers = list(before) if several else [before]
    for place, value in values.items():
        if type(numbers[place]) is not int or not 0 < value <= numbers[place]:
            raise ValueError(f"{name} is {before!r} and cannot become {value}")
        numbers[place] = value
    setattr(modules[path], attribute, type(before)(numbers) if several else numbers[0])


def _groups_left(module: _ConvNd, keep: Tensor) -> int:
    """Return the number of groups of a convolution that keep any position of the first dimension of its weight.

    If every group loses the same positions, this is the number of all groups.
    """
    size = module.in_channels if module.transposed else module.out_channels
    return len((keep // (size // module.groups)).unique())


def sliced(tensor: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    """Return a copy that keeps only these positions of these dimensions, in the same memory format."""
    data = tensor.detach()
    for dim, keep in dims.items():
        data = data.index_select(dim, keep.to(data.device))
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        return data.clone(memory_format=torch.channels_last)
    return data.clone(memory_format=torch.preserve_format)


def _smaller(tensor: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    data = sliced(tensor, dims)
    return nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data


def _correct_attributes(module: nn.Module, groups: int | None) -> None:
    """Set the attributes that torch's own layers read or print; ``groups`` is a convolution's remaining number."""
    if isinstance(module, _ConvNd):
        first, second = module.weight.shape[:2]
        module.groups = module.groups if groups is None else groups
        if module.transposed:
            module.in_channels, module.out_channels = first, second * module.groups
        else:
            module.out_channels, module.in_channels = first, second * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _NormBase):
        vectors = [module.weight, module.bias, module.running_mean, module.running_var]
        module.num_features = next(len(vector) for vector in vectors if vector is not None)
    elif isinstance(module, nn.GroupNorm):
        module.num_groups = len(module.weight) // (module.num_channels // module.num_groups)
        module.num_channels = len(module.weight)
    elif isinstance(module, nn.RNNBase):
        module.input_size = module.get_parameter("weight_ih_l0").shape[1]
        module.hidden_size = module.get_parameter("weight_hh_l0").shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    else:
        _correct_known_class(module)


def _correct_known_class(module: nn.Module) -> None:
    """Set the sizes that modules of other libraries read in their forward, by the names of their classes."""
    name = f"{type(module).__module__}.{type(module).__name__}"
    if name == "transformers.pytorch_utils.Conv1D":  # GPT-2's linear layer
        for attribute, size in zip(("nx", "nf"), module.get_parameter("weight").shape, strict=True):
            setattr(module, attribute, size)
    elif name == "timm.models.metaformer.Scale":
        shape: Any = module.shape
        module.__dict__["shape"] = (len(module.get_parameter("scale")), *shape[1:])
    elif name == "torchvision.models.vision_transformer.VisionTransformer":
        module.__dict__["hidden_dim"] = module.get_parameter("class_token").shape[-1]
