"""Put norms that count removed channels in the place of norms over all channels."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from depl0._counted_norm import CountedNorm, NormSpec
from depl0.surgery.constant import replace_module


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
