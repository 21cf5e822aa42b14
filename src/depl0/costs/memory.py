"""Memory in bytes that a forward pass needs, counted tensor by tensor and independent of the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from depl0.host.copies import address_of
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode


def memory_bytes(model: nn.Module, inputs: Sequence[Tensor] | ExampleInputs) -> int:
    """Return the bytes of the weights plus the peak of the intermediate tensors during one forward pass.

    Neither the inputs nor the workspaces of kernels are counted.
    """
    example = inputs if isinstance(inputs, ExampleInputs) else ExampleInputs(tuple(inputs), {})
    own = [*model.parameters(), *model.buffers()]
    weights = sum({address_of(t): t.untyped_storage().nbytes() for t in own}.values())
    watch = _Watch([*own, *example.tensors()])
    with evaluation_mode(model), torch.no_grad(), watch:
        example.run(model)
    return weights + watch.most


class _Watch(TorchDispatchMode):
    """Records every tensor that an operator returns, and tracks which of them are still alive."""

    def __init__(self, not_counted: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._known = {StorageWeakRef(t.untyped_storage()): 0 for t in not_counted}
        self._live: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.layout is torch.strided:
                storage = value.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference not in self._known:
                    self._live[reference] = storage.nbytes()
        self._live = {reference: size for reference, size in self._live.items() if not reference.expired()}
        self.most = max(self.most, sum(self._live.values()))
        return result
