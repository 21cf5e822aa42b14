"""The log α of the last call, which the penalty of the same step uses again."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn


class LastLogAlpha:
    """Holds log α as long as the state that it was computed from is unchanged and its graph has not been used.

    The generator runs group after group, so computing log α again would cost almost as much as all other operations on
    gates together. A copy starts empty.
    """

    def __init__(self) -> None:
        self._log_alpha: Tensor | None = None
        self._state: list[tuple[int, int]] = []
        self._thread = 0

    def __reduce__(self) -> tuple[type[LastLogAlpha], tuple[()]]:
        return LastLogAlpha, ()

    def keep(self, log_alpha: Tensor, *modules: nn.Module | None) -> None:
        """Keep a log α that these modules have just computed, until the next backward pass through it."""
        self._log_alpha = None
        if torch.compiler.is_compiling() or not log_alpha.requires_grad or torch._C._current_graph_task_id() != -1:
            return  # a compiled graph removes repeated operators itself; checkpoints call again in the backward pass
        self._log_alpha, self._state, self._thread = log_alpha, list(_versions(modules)), get_ident()
        own = weakref.ref(self)

        def forget(_: Any) -> None:
            if (holder := own()) is not None:
                holder._log_alpha = None

        log_alpha.register_hook(forget)

    def current(self, *modules: nn.Module | None) -> Tensor | None:
        """Return the log α that these modules would compute now, if it is known."""
        if self._log_alpha is None or torch.compiler.is_compiling() or self._thread != get_ident():
            return None
        return self._log_alpha if self._state == list(_versions(modules)) else None


def _versions(modules: tuple[nn.Module | None, ...]) -> Iterator[tuple[int, int]]:
    """Yield the identity and the version of every tensor of the modules; in-place operations change the version."""
    for module in modules:
        for part in () if module is None else module.modules():
            for tensor in (*part._parameters.values(), *part._buffers.values()):  # faster than parameters()
                yield id(tensor), 0 if tensor is None else tensor._version
