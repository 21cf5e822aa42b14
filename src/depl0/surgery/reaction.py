"""Whether a network with some of its gates closed still looks at its inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0.analysis.plan import Plan
from depl0.analysis.trace import ExampleInputs, private_copy
from depl0.surgery.certificate import random_cases
from depl0.surgery.extract import scaled_parameters


def reacts(plan: Plan, host: nn.Module, gates: Tensor, example: ExampleInputs) -> bool:
    """Tell whether the outputs differ between random inputs with these gates.

    Closing a whole group leaves the shortcut around a block, but cuts a plain chain in two.
    """
    scaled = scaled_parameters(plan, host, gates)
    copied = private_copy(host).eval()
    outputs = []
    with torch.no_grad():
        for case in random_cases(example.on_device_of(host), 2):
            result = torch.func.functional_call(copied, scaled, case.args, case.kwargs)
            outputs.append([leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)])
    first, *others = outputs
    return any(not torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
