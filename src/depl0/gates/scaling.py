"""Multiply gates into the parameters of their sites."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from depl0._util.tensors import ConstantTensors
from depl0.analysis.plan import Plan


class SiteScaling(ConstantTensors):
    """Computes the gated parameters of a host from its parameters and the flat vector of gates.

    A gate after batch norm is equivalent to scaling that norm's weight and bias: BN(x; z·γ, z·β). All vectors of the
    network are concatenated and scaled in one multiplication; the gate values of all sites are gathered at once.

    Args:
        plan: the plan with the sites of the gates.
        parameters: the host's parameters by name.
        removed: the gates that are permanently 0, whatever their value in the vector. None if there are none.
    """

    index: Tensor
    constants: Tensor

    def __init__(self, plan: Plan, parameters: Mapping[str, Tensor], removed: Tensor | None = None) -> None:
        super().__init__()
        axes = list(plan.sites)
        self._vectors = [a for a in axes if parameters[a[0]].dim() == 1]
        self._weights = [a for a in axes if parameters[a[0]].dim() > 1]
        ordered = self._vectors + self._weights
        gates_at = [plan.uncut_sites[axis] if axis in plan.uncut_sites else plan.axes[axis] for axis in ordered]
        self._sizes = [len(gates) for gates in gates_at]
        index = torch.cat(gates_at)
        index = torch.where(index < 0, plan.num_gates, index)
        self.constants = torch.tensor([1.0, 0.0] if removed is not None else [1.0])
        if removed is not None:
            is_removed = torch.cat([removed.cpu(), torch.zeros(1, dtype=torch.bool)])
            index = torch.where(is_removed[index], plan.num_gates + 1, index)
        self.index = index

    @property
    def names(self) -> list[str]:
        """Return the names of the parameters that are scaled."""
        return list(dict.fromkeys(name for name, _ in self._vectors + self._weights))

    def forward(self, parameters: Mapping[str, Tensor], gates: Tensor) -> dict[str, Tensor]:
        """Return the scaled parameters by name; ``parameters`` holds at least :attr:`names`."""
        with_constants = torch.cat([gates, self.constants])
        factors = with_constants.index_select(0, self.index)
        scaled: dict[str, Tensor] = {}
        vectors = [parameters[name] for name, _ in self._vectors]
        count = sum(self._sizes[: len(vectors)])
        if vectors:
            flat = _scale(torch.cat(vectors), factors[:count])
            parts = flat.split(self._sizes[: len(vectors)])
            for (name, _), vector, part in zip(self._vectors, vectors, parts, strict=True):
                scaled[name] = part.to(vector.dtype)  # some networks keep only their norms in float32
        if self._weights:
            parts = factors[count:].split(self._sizes[len(vectors) :])
            for (name, dim), factor in zip(self._weights, parts, strict=True):
                weight = scaled.get(name, parameters[name])
                view = [1] * weight.dim()
                view[dim] = -1
                scaled[name] = _scale(weight, factor.view(view))
        return scaled


def _scale(tensor: Tensor, factor: Tensor) -> Tensor:
    return tensor * factor.to(tensor.dtype)


def scaled_parameters(plan: Plan, host: nn.Module, gates: Tensor) -> dict[str, Tensor]:
    """Return the host's gated parameters for these gates."""
    parameters = dict(host.named_parameters())
    device = next(iter(parameters.values())).device
    scaling = SiteScaling(plan, parameters).to(device)
    with torch.no_grad():
        scaled: dict[str, Tensor] = scaling(parameters, gates.to(device))
    return scaled
