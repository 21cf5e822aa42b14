"""An exponential moving average of the weights, with the update of :mod:`torch.optim.swa_utils`.

``swa_utils.AveragedModel`` keeps a network of fixed shape. The networks here become smaller while they are averaged, so
that their averages are kept as a list of tensors, which is cut along with them.
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
        """Let the mean begin with the present weights."""
        self.mean = [tensor.detach().clone() for tensor in self._present()]

    def update(self) -> None:
        """Move the mean towards the present weights, in one operation for all of them."""
        self._average(self.mean, self._present(), 0)

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Give the network the mean as its weights."""
        torch._foreach_copy_(self._present(), self.mean)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Let the network have the mean as its weights for a while."""
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
        """Go on with a smaller network: the mean is cut as its weights were."""
        moved = {id(entry.before): entry for entry in shrunk.moved}
        self.mean = [moved[id(tensor)].cut(mean) for tensor, mean in zip(self._present(), self.mean, strict=True)]
        self._model = shrunk.host
