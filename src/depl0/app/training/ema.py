"""An exponential moving average of the weights, with the update of :mod:`torch.optim.swa_utils`.

``swa_utils.AveragedModel`` keeps a network of fixed shape. Networks in a search become smaller while they are averaged.
Their averages are therefore kept as a list of tensors, which is cut along with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from depl0.surgery.shrink import Shrunk


@final
class Average:
    """Keeps mean ← decay·mean + (1 − decay)·weights of a network, its statistics included."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._average = get_ema_multi_avg_fn(decay)
        self._model = model
        self.restart()

    def restart(self) -> None:
        """Reset the mean to the current weights."""
        self.mean = [tensor.detach().clone() for tensor in self._present()]

    def update(self) -> None:
        """Update the mean with the current weights, in one operation for all of them."""
        self._average(self.mean, self._present(), 0)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the mean to the network's weights."""
        torch._foreach_copy_(self._present(), self.mean)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replace the network's weights by the mean within the context."""
        own = [tensor.detach().clone() for tensor in self._present()]
        self.copy_to_model()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._present(), own)

    def _present(self) -> list[Tensor]:
        tensors = (*self._model.parameters(), *self._model.buffers())
        return [tensor for tensor in tensors if tensor.is_floating_point()]

    def carry_over(self, shrunk: Shrunk) -> None:
        """Continue with a smaller network by cutting the mean in the same way as its weights."""
        moved = {id(entry.before): entry for entry in shrunk.moved}
        self.mean = [moved[id(tensor)].cut(mean) for tensor, mean in zip(self._present(), self.mean, strict=True)]
        self._model = shrunk.host
