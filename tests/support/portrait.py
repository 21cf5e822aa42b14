"""Everything about a host that must be the same before and after."""

from __future__ import annotations

import torch
from torch import nn


class Portrait:
    """All there is to see of a network from outside."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.kind = model, type(model)
        self.modules = [(name, id(module), type(module), module.training) for name, module in model.named_modules()]
        self.tensors = [
            (name, id(tensor), tensor.data_ptr(), tensor.requires_grad, tensor.grad)
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        ]
        self.values = {name: value.clone() for name, value in model.state_dict().items()}
        self.hooks = [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()
        ]
        self.attributes = [sorted(module.__dict__) for module in model.modules()]
        self.rng = torch.get_rng_state()

    def check(self, rng: bool = True) -> None:
        now = Portrait(self.model)
        for field in ("kind", "modules", "tensors", "hooks", "attributes"):
            assert getattr(self, field) == getattr(now, field), field
        assert self.values.keys() == now.values.keys()
        assert all(torch.equal(value, now.values[name]) for name, value in self.values.items())
        assert len(torch.nn.modules.module._global_forward_hooks) == 0
        assert len(torch.nn.modules.module._global_forward_pre_hooks) == 0
        if rng:
            assert torch.equal(self.rng, now.rng)
