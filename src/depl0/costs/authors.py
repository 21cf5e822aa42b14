"""The penalties of the code that the paper's authors published, where they are not the paper's own.

For VGG16 and ResNet-56 it is a chain over the gated layers, in order of execution, with n_l open gates in the l-th:

    chain = Σ_l k_l²·E[n_{l−1}]·E[n_l],   n_0 the channels of the image

On VGG16 these are the expected weights of its convolutions. On ResNet-56 they belong to no layer: the input of a
block's first convolution is the shortcut, which keeps its width, and the convolution behind the gates is left out.

For ResNet-50 every filter counts its own weights once more for each position of its kernel:

    groups-k2 = Σ_k k²·|g_k|·π_k
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from depl0._constants import ConstantTensors
from depl0.analysis.plan import Plan

KINDS = ("chain", "groups-k2")


class AuthorsCost(ConstantTensors):
    """Both penalties as differentiable functions of open probabilities."""

    group_of: Tensor
    first: Tensor
    kernels: Tensor
    weights: Tensor

    def __init__(self, plan: Plan, shapes: Mapping[str, Iterable[int]], filter_weights: Tensor) -> None:
        """``filter_weights`` are |g_k|, the weights of every gate's own filters."""
        super().__init__()
        weight_of = {use.layer: use.out_axis[0] for use in reversed(plan.uses)}
        sizes = [list(shapes.get(weight_of.get(group.name, ""), (1, 1))) for group in plan.groups]
        kernels = [math.prod(size[2:]) for size in sizes]
        members = torch.tensor([group.size for group in plan.groups])
        self.group_of = torch.arange(len(plan.groups)).repeat_interleave(members)
        self.first = torch.tensor([float(math.prod(sizes[0][1:2]))])
        self.kernels = torch.tensor(kernels, dtype=torch.float32)
        self.weights = filter_weights.float() * self.kernels[self.group_of]

    def forward(self, open_probability: Tensor, kind: str) -> Tensor:
        """Return one of the two."""
        if kind == "groups-k2":
            return torch.dot(open_probability, self.weights)
        open_gates = torch.zeros_like(self.kernels).index_add(0, self.group_of, open_probability)
        before = torch.cat([self.first, open_gates[:-1]])
        return torch.dot(before * open_gates, self.kernels)
