"""Attention modules that can be pruned: recognised by what they compute, and what takes their places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from depl0.host.copies import private_copy
from depl0.replacements.attention import AttentionSpec, PrunedAttention, described
from depl0.replacements.window import PrunedWindowAttention, described_window

AnyPruned: TypeAlias = PrunedAttention | PrunedWindowAttention


def in_windows(spec: AttentionSpec) -> bool:
    """Tell whether attention is in windows of an image, not over a sequence."""
    return spec.form in ("windows", "cosine windows")


def pruned_attention(module: nn.Module, spec: AttentionSpec) -> AnyPruned:
    """Return what takes the place of an attention module: the same of any width, with its parameters."""
    return PrunedWindowAttention(module, spec) if in_windows(spec) else PrunedAttention(module, spec)


def recognise_attention(module: nn.Module) -> AttentionSpec | None:
    """Return what a self-attention module computes, or None if it is none that can be pruned.

    It must give the same values as what would take its place, in float64, on random inputs.
    """
    if isinstance(module, AnyPruned):
        return module.spec
    spec = described(module) or described_window(module)
    if spec is None:
        return None
    rng = torch.Generator().manual_seed(0)
    try:
        tried = private_copy(module).double().eval()
        for child in tried.modules():
            if isinstance(child, nn.Dropout):
                child.p = 0.0
        width = tried.get_parameter(spec.weight).shape[1]
        with torch.no_grad():
            for parameter in tried.parameters():
                noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
                parameter.copy_(noise / (width**0.5 if parameter.dim() > 1 else 2))
            pruned = pruned_attention(tried, spec).eval()
            both = [(tried(*args), pruned(*args)) for args in _inputs(tried, spec, width, rng)]
    except Exception:  # it wants something else than one input, so it is something else
        return None
    return spec if all(_same(wanted, found) for wanted, found in both) else None


def _inputs(module: nn.Module, spec: AttentionSpec, width: int, rng: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
    shapes: list[tuple[int, ...]] = [(2, 5)]
    if in_windows(spec):  # several windows, not all of them full; and one
        down, across = vars(module)["window_size"]
        shapes = [(2, 2 * down + 1, 3 * across), (1, down, across)]
    for shape in shapes:
        x = torch.randn(*shape, width, generator=rng, dtype=torch.float64)
        yield (x, x, x) if spec.form == "torch" else (x,)


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return len(wanted) == len(found) and all(_same(a, b) for a, b in zip(wanted, found, strict=True))
    return (
        isinstance(wanted, Tensor)
        and isinstance(found, Tensor)
        and wanted.shape == found.shape
        and bool(torch.allclose(wanted, found, rtol=1e-9, atol=1e-10))
    )
