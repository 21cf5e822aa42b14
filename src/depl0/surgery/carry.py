"""Take an optimizer along when its network becomes smaller."""

from __future__ import annotations

import torch
from torch import Tensor

from depl0.surgery.narrow import Narrowed


def carry_over(optimizer: torch.optim.Optimizer, narrowed: Narrowed) -> None:
    """Give an optimizer the parameters of the smaller host, in place, with what it remembers of each cut alike.

    Works for any optimizer whose state has, for each parameter, tensors of the parameter's shape (momentum, Adam's
    moments) and anything else (step counts), which is kept. Other parameters are left as they are.
    """
    moved = {id(entry.before): entry for entry in narrowed.moved}
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            entry = moved.get(id(parameter))
            if entry is None:
                continue
            group["params"][place] = entry.after
            remembered = optimizer.state.pop(parameter, None)
            if remembered is not None:
                optimizer.state[entry.after] = {
                    key: entry.cut(value) if isinstance(value, Tensor) and value.shape == parameter.shape else value
                    for key, value in remembered.items()
                }
