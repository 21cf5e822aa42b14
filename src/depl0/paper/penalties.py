"""Penalties of the code published by the paper's authors that differ from those in the paper.

For VGG16 and ResNet-56 it is a chain over the gated layers, in order of execution, with n_l open gates in the l-th:

    chain = Σ_l k_l²·E[n_{l−1}]·E[n_l],   n_0 the channels of the image

On VGG16 these are the expected weights of its convolutions. On ResNet-56 they belong to no layer: the input of a
block's first convolution is the shortcut, which keeps its width, and the convolution behind the gates is left out.

For ResNet-50 every filter counts its own weights once more for each position of its kernel:

    groups-k2 = Σ_k k²·|g_k|·π_k
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from depl0._util.tensors import ConstantTensors
from depl0.analysis.plan import Plan
from depl0.costs.expected import PENALTIES


@PENALTIES.register("groups-k2", lambda penalty: penalty)
class GroupsByKernel(ConstantTensors):
    """Σ_k k²·|g_k|·π_k."""

    weights: Tensor

    def __init__(self, plan: Plan, shapes: Mapping[str, Sequence[int]], filter_weights: Tensor) -> None:
        super().__init__()
        self.weights = filter_weights.float() * _kernels(plan, shapes).repeat_interleave(_members(plan))

    def forward(self, open_probability: Tensor) -> Tensor:
        """Return the expected penalty."""
        return torch.dot(open_probability, self.weights)


@PENALTIES.register("chain", lambda penalty: penalty)
class Chain(ConstantTensors):
    """Σ_l k_l²·E[n_{l−1}]·E[n_l]."""

    group_of: Tensor
    first: Tensor
    kernels: Tensor

    def __init__(self, plan: Plan, shapes: Mapping[str, Sequence[int]], filter_weights: Tensor) -> None:
        super().__init__()
        self.group_of = torch.arange(len(plan.groups)).repeat_interleave(_members(plan))
        self.first = torch.tensor([float(math.prod(_sizes(plan, shapes)[0][1:2]))])
        self.kernels = _kernels(plan, shapes)

    def forward(self, open_probability: Tensor) -> Tensor:
        """Return the expected penalty."""
        open_gates = torch.zeros_like(self.kernels).index_add(0, self.group_of, open_probability)
        before = torch.cat([self.first, open_gates[:-1]])
        return torch.dot(before * open_gates, self.kernels)


def _sizes(plan: Plan, shapes: Mapping[str, Sequence[int]]) -> list[Sequence[int]]:
    """Return the shape of every group's own weight."""
    weight_of = {use.layer: use.out_axis[0] for use in reversed(plan.uses)}
    return [shapes.get(weight_of.get(group.name, ""), (1, 1)) for group in plan.groups]


def _kernels(plan: Plan, shapes: Mapping[str, Sequence[int]]) -> Tensor:
    return torch.tensor([float(math.prod(size[2:])) for size in _sizes(plan, shapes)])


def _members(plan: Plan) -> Tensor:
    return torch.tensor([group.size for group in plan.groups])
