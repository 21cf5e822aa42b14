"""Count the operators that code runs and the bytes saved for backward passes, which do not depend on timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


@final
class OperatorCount(TorchDispatchMode):
    """Counts operators by name while it is active, backward passes and optimizers included.

    >>> import torch
    >>> with OperatorCount() as count:
    ...     _ = torch.ones(2, 2).t().mul(2)
    >>> dict(count.views), dict(count.others)
    ({'aten.t.default': 1}, {'aten.ones.default': 1, 'aten.mul.Tensor': 1})
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.views: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operator and run it."""
        (self.views if is_view(func) else self.others)[str(func)] += 1
        return func(*args, **(kwargs or {}))


def is_view(operator: OpOverload) -> bool:
    """Return True if an operator only returns a view by its schema, which means that its result aliases an input.

    The result of an in-place operator also aliases an input, but the operator writes to it.

    >>> import torch
    >>> [is_view(op) for op in (torch.ops.aten.t.default, torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)]
    [True, False, False]
    """
    aliases = [value.alias_info for value in operator._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


class SavedBytes:
    """The memory that was kept, every storage once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, if it was not counted yet."""
        storage = tensor.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()

    def drop(self, tensor: Tensor) -> None:
        """Leave a tensor's storage out."""
        self._sizes.pop(tensor.untyped_storage().data_ptr(), None)

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(self._sizes.values())


@contextmanager
def counting_saved_bytes(network: nn.Module) -> Iterator[SavedBytes]:
    """Count what autograd saves; the network's own parameters and buffers are there anyway and do not count.

    Everything saved stays alive until the backward pass, so two storages never share an address. Scaled copies of
    parameters, as gates make them, are not the network's own and count.
    """
    saved = SavedBytes()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved
    for own in (*network.parameters(), *network.buffers()):
        saved.drop(own)
