"""What the blocks of a network give in a forward pass, kept while it runs.

A block is a module that computes with layers of its own: a residual block, an inverted bottleneck, a transformer block.
Plain sequences are none, because their last entry gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_SEQUENCES = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def block_names(network: nn.Module) -> tuple[str, ...]:
    """List the blocks of a network by their names.

    >>> block_names(nn.Sequential(nn.Linear(2, 2), nn.TransformerEncoderLayer(2, 1)))[0]
    '1'
    """
    return tuple(
        name
        for name, module in network.named_modules()
        if name and not isinstance(module, _SEQUENCES) and next(module.children(), None) is not None
    )


@contextmanager
def kept_outputs(network: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Keep what these modules give while the context lasts.

    What is not one tensor or comes twice is left out, and so are modules that went with a whole block.
    """
    outputs: dict[str, Tensor | None] = {}
    found: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, __: Any, output: Any) -> None:
        outputs[name] = output if isinstance(output, Tensor) and name not in outputs else None

    modules = dict(network.named_modules())
    handles = [modules[name].register_forward_hook(partial(keep, name)) for name in names if name in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
        found.update({name: value for name, value in outputs.items() if value is not None})


def relative_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor | None:
    """Return the mean square error of all blocks of one shape, each relative to its own mean square; None: of none."""
    errors = []
    for name, target in wanted.items():
        own = found.get(name)
        if own is None or own.shape != target.shape or not own.is_floating_point():
            continue  # its channels are gated: there is nothing to compare with
        target = target.float()
        errors.append((own.float() - target).square().mean() / target.square().mean().clamp_min(1e-12))
    return torch.stack(errors).mean() if errors else None
