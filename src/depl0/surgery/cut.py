"""Cut a network, and put what works with fewer channels in the place of what does not: norms, attention, …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from depl0.analysis.full_width import width_axis
from depl0.analysis.propagate import Axis
from depl0.replacements.attention import AttentionSpec
from depl0.replacements.attentions import AnyPruned, pruned_attention
from depl0.replacements.constant import replace_module
from depl0.replacements.full_width import WidthSpec, keep_full_width
from depl0.replacements.norm import CountedNorm, NormSpec
from depl0.surgery.slicing import slice_module


class Replaced(Protocol):
    """What says which modules of a network need others in their places: a plan, or the record of a cut."""

    @property
    def norms(self) -> Mapping[str, NormSpec]:
        """Return the norms over all channels."""

    @property
    def attentions(self) -> Mapping[str, AttentionSpec]:
        """Return the self-attention modules."""

    @property
    def full_width(self) -> Mapping[str, WidthSpec]:
        """Return the small modules that look at all channels at once."""


def cut_to(model: nn.Module, positions: Mapping[Axis, Tensor], replaced: Replaced) -> None:
    """Keep only these positions of a network's axes, in place, and make it work with them."""
    slice_module(model, positions)
    count_norms(model, replaced.norms)
    prune_attentions(model, replaced.attentions)
    modules = dict(model.named_modules())
    for path, spec in replaced.full_width.items():
        if width_axis(path) in positions:
            keep_full_width(modules[path], spec, positions[width_axis(path)])


def count_norms(model: nn.Module, norms: Mapping[str, NormSpec]) -> None:
    """Replace the norms that have lost channels, or may have without a parameter to tell, in place."""
    modules = dict(model.named_modules())
    for path, spec in norms.items():
        module = modules[path]
        if not isinstance(module, CountedNorm) and _may_be_narrower(module, spec):
            replace_module(model, path, CountedNorm(module, spec))


def _may_be_narrower(module: nn.Module, spec: NormSpec) -> bool:
    name = spec.scale or spec.shift
    return name is None or module.get_parameter(name).numel() < spec.width


def prune_attentions(model: nn.Module, attentions: Mapping[str, AttentionSpec]) -> None:
    """Replace the attention modules that have lost channels, in place, and tell those that were replaced before."""
    modules = dict(model.named_modules())
    for path, spec in attentions.items():
        module = modules[path]
        if isinstance(module, AnyPruned):
            module.measure()
        elif _has_lost_channels(module, spec):
            replace_module(model, path, pruned_attention(module, spec))


def _has_lost_channels(module: nn.Module, spec: AttentionSpec) -> bool:
    weight, out = module.get_parameter(spec.weight), module.get_parameter(f"{spec.out}.weight")
    width = spec.heads * spec.head_dim
    narrower = len(weight) < 3 * width or out.shape[1] < width
    # the code of torch's and torchvision's modules takes the width of its input for that of its heads
    return narrower or (spec.form != "timm" and (weight.shape[1] < width or len(out) < width))
