"""Caches of keys and values among a network's outputs, as Hugging Face's language models return them.

A cache is meant for the network's own next call. A pruned network stores tensors of other widths in it, so caches are
not compared. The outputs of a next call that uses them are compared instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

CACHE = "past_key_values"
_MASKS = ("attention_mask", "decoder_attention_mask")


class TwoPasses(NamedTuple):
    """The outputs of a network, and those of a next call with the cache that it returned."""

    first: Any
    second: Any


def is_cache(value: object) -> bool:
    """Return True for a cache of transformers; the library is not imported for this check."""
    loaded = sys.modules.get("transformers.cache_utils")
    return loaded is not None and isinstance(value, loaded.Cache)


def with_next_call(function: Callable[..., Any], kwargs: Mapping[str, Any], args: tuple[Any, ...], outputs: Any) -> Any:
    """Call a network once more with the cache that it returned, on the last token; return the outputs of both calls.

    Outputs without a cache are returned unchanged, and so are those of a network that accepts no cache with these
    inputs.
    """
    cache = outputs.get(CACHE) if isinstance(outputs, Mapping) else None
    if not is_cache(cache) or CACHE in kwargs:
        return outputs
    following = {key: _continued(key, value) for key, value in kwargs.items()}
    second = function(*(_continued("", arg) for arg in args), **following, **{CACHE: cache})
    return TwoPasses(outputs, second)


def _continued(name: str, value: Any) -> Any:
    """Return the last token of tokens, or a mask that is longer by one."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    if name in _MASKS:
        return torch.cat([value, value[:, -1:]], dim=1)
    return value[:, -1:] if value.dim() == 2 or value.is_floating_point() else value
