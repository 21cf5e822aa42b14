"""The data that a search looks at besides training on it: for first scores, and for batch-norm statistics.

A batch is what the network is called with, alone: a tensor, a tuple of arguments or a dict of keyword arguments. With a
loss it is a pair (inputs, targets), as data loaders give it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, final

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs

Loss: TypeAlias = Callable[[Any, Any], Tensor]
"""(outputs, targets) -> the mean loss of a batch"""

Batches: TypeAlias = Iterable[tuple[Any, Any]]
"""(inputs, targets)"""

MOST_BATCHES = 32
"""batches that are looked at, at most, each time"""
MOST_INPUTS = 1024
"""examples that layers are fitted to"""


@dataclass(frozen=True)
class Calibration:
    """Batches for the three things that are decided by looking at data. They may be the same ones.

    Attributes:
        scores: for the first scores of the gates.
        statistics: for measuring batch-norm statistics anew when the gates are frozen.
        judge: for deciding, by the loss, whether the new statistics are better.
        loss: the loss of the task; None: batches are inputs alone, and nothing is judged by a loss.
    """

    scores: Iterable[Any]
    statistics: Iterable[Any]
    judge: Iterable[Any]
    loss: Loss | None = None

    @classmethod
    def of(cls, batches: Calibration | Iterable[Any] | None, loss: Loss | None) -> Calibration | None:
        """Accept one source of batches for everything."""
        if batches is None or isinstance(batches, Calibration):
            return batches
        if isinstance(batches, Iterator):
            batches = list(islice(batches, MOST_BATCHES))  # it could not be read a second time
        if isinstance(batches, DataLoader):
            batches = IndependentLoader(batches)
        if not isinstance(batches, Iterable) or isinstance(batches, (Tensor, dict, str)):
            raise InputError(
                f"calibrate must give batches, got {type(batches).__name__} instead.",
                hint="pass a data loader or a list of batches.",
            )
        return cls(batches, batches, batches, loss)

    def inputs(self, images: int = MOST_INPUTS) -> list[Any]:
        """Return inputs alone, as many whole batches as hold so many examples, at least one."""
        found: list[Any] = []
        count = 0
        for inputs, _ in self.pairs(self.scores):
            found.append(tuple(inputs) if isinstance(inputs, list) else inputs)
            count += next((len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)), 1)
            if count >= images:
                break
        return found

    def pairs(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Give the first batches as (inputs, targets); targets are None where there is no loss."""
        for batch in islice(batches, MOST_BATCHES):
            if self.loss is None:
                yield batch, None
            elif isinstance(batch, (tuple, list)) and len(batch) == 2:
                yield batch[0], batch[1]
            else:
                raise InputError(
                    f"with a loss, a batch of calibrate must be a pair (inputs, targets), got {type(batch).__name__} "
                    "instead.",
                    hint="leave the loss out where batches are inputs alone.",
                )


@final
class IndependentLoader:
    """A data loader that can be read while somebody else reads it.

    With ``persistent_workers`` a loader has one iterator, which a second ``iter(loader)`` would reset.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        if loader.persistent_workers:
            loader = copy.copy(loader)
            loader._iterator = None
        yield from loader


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a network with a batch of inputs."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    example = ExampleInputs.of(tuple(inputs) if isinstance(inputs, list) else inputs)
    return model(*example.args, **example.kwargs)


def split(batch: Any, size: int) -> Iterator[Any]:
    """Cut a batch of any structure into smaller ones of ``size`` entries; all tensors are cut along the first axis."""
    leaves, structure = pytree.tree_flatten(batch)
    count = next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0), 1)
    for start in range(0, count, size):
        part = [
            leaf[start : start + size] if isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == count else leaf
            for leaf in leaves
        ]
        yield pytree.tree_unflatten(part, structure)
