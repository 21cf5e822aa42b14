"""What many tests do: make a network lively, draw gates, prune it, compare outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

import depl0
from depl0.host.inputs import ExampleInputs


def liven(model: nn.Module, inputs: Any, seed: int = 0) -> nn.Module:
    """Give norms random affines, and batch norms the statistics of real activations."""
    rng = torch.Generator().manual_seed(seed)
    norms = [m for m in model.modules() if isinstance(m, (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d))]
    with torch.no_grad():
        for norm in norms:
            if isinstance(norm.weight, Tensor):
                norm.weight.copy_(torch.rand(norm.weight.shape, generator=rng) + 0.5)
                norm.bias.copy_(torch.randn(norm.bias.shape, generator=rng) * 0.3)
        running = [m for m in norms if isinstance(m, _BatchNorm) and m.running_mean is not None]
        for norm in running:
            norm.running_mean.copy_(torch.randn(norm.running_mean.shape, generator=rng) * 0.3)
            norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=rng) + 0.5)
    return model.eval()


def random_gates(count: int, seed: int = 0) -> Tensor:
    """Close a third of the gates, and draw the rest from (0.3, 1)."""
    rng = torch.Generator().manual_seed(seed)
    gates = torch.rand(count, generator=rng) * 0.7 + 0.3
    return torch.where(torch.rand(count, generator=rng) < 0.35, 0.0, gates)


def pruned(
    model: nn.Module, inputs: Any, seed: int = 0, *, groups: Any = "all", remove_blocks: bool = False
) -> tuple[depl0.GatedModel, nn.Module]:
    """Attach with random gates, and extract."""
    gated = depl0.attach(model, inputs, groups=groups).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates, seed))
    return gated, gated.extract(remove_blocks=remove_blocks).eval()


def call(model: nn.Module, inputs: Any) -> Any:
    """Run a network on example inputs of any form, without gradients."""
    example = ExampleInputs.of(inputs)
    with torch.no_grad():
        return model(*example.args, **example.kwargs)


def flat(outputs: Any) -> Tensor:
    """Put all tensors of an output into one vector."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return torch.cat([leaf.double().flatten() for leaf in leaves])


def distance(a: Any, b: Any) -> float:
    """Return the largest difference of two outputs, relative to the first one's largest value."""
    left, right = flat(a).detach(), flat(b).detach()
    return float((left - right).abs().max() / left.abs().max())


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors of example inputs."""
    return pytree.tree_map(
        lambda leaf: leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, inputs
    )


def same_cost(a: depl0.costs.Cost, b: depl0.costs.Cost) -> bool:
    return (a.params, a.macs) == (b.params, b.macs)
