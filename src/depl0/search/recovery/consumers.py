"""Consumer layers: the selection of those that can be refitted, and their inputs as rows of a matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from depl0.analysis.plan import NO_GATE, Plan
from depl0.host.network import canonical_names
from depl0.search.recovery.lockstep import LayerCall
from depl0.search.recovery.regression import is_wide

ROWS = 65_536
"""Largest number of rows for a layer's statistics, over all batches."""
ELEMENTS = 20_000_000
"""Number of elements in those rows, unless the rows would be too few to fit all weights."""


@final
@dataclass(frozen=True)
class ConsumerLayer:
    """A convolution or linear layer that can be refitted, because its weight is not used elsewhere."""

    layer: str
    weight: str
    gates: Tensor
    """The gate of every input channel, -1 for none."""
    out_gates: Tensor
    """The gate of every output channel."""
    constant: str | None
    """The bias, or else the running mean of the following batch norm, to which a constant can be added."""
    norm: str | None
    """The batch norm that is the only consumer of the layer's output."""
    tied: bool = False
    """True if the weight is also used in an embedding."""
    depthwise: bool = False
    """True if every filter reads only its own channel, which is closed together with it."""


def find_consumers(plan: Plan, host: nn.Module) -> dict[str, ConsumerLayer]:
    """Return the layers that can be refitted, by the name of their weight.

    Not grouped or transposed convolutions, and not layers whose weight is used or stored elsewhere, except in an
    embedding.
    """
    parameters = dict(host.named_parameters())
    shared = Counter(canonical_names(host).values())
    calls = Counter(use.out_axis[0] for use in plan.uses)
    norms = Counter(plan.norm_after.values())
    consumers: dict[str, ConsumerLayer] = {}
    for use in plan.uses:
        weight = use.out_axis[0]
        depthwise = use.in_axis is None and parameters[weight].shape[1] == 1
        reads_all = use.in_axis is not None and use.groups == 1 and use.in_axis[1] > 0
        is_own = calls[weight] == 1 and (shared[weight] == 1 or _is_tied(host, weight))
        if not ((depthwise or reads_all) and is_own and parameters[weight].is_floating_point()):
            continue
        norm, read = plan.norm_after.get(use.layer), use.in_axis or use.out_axis
        consumers[weight] = ConsumerLayer(
            use.layer,
            weight,
            plan.axes.get(read, torch.full((use.out_size if depthwise else use.in_size,), NO_GATE)),
            plan.axes.get(use.out_axis, torch.full((use.out_size,), NO_GATE)),
            _constant(host, weight, norm if norm is not None and norms[norm] == 1 else None, shared),
            norm,
            tied=shared[weight] > 1,
            depthwise=depthwise,
        )
    return consumers


def _is_tied(host: nn.Module, weight: str) -> bool:
    """Return True if all other modules with this weight are embeddings, as in the last layer of language models."""
    shared = host.get_parameter(weight)
    owners = [module for module in host.modules() if any(shared is each for each in module.parameters(recurse=False))]
    return sum(not isinstance(module, nn.Embedding) for module in owners) == 1


def _constant(host: nn.Module, weight: str, norm: str | None, shared: Mapping[str, int]) -> str | None:
    """Return the name of the tensor to which a constant in the layer's output can be added."""
    path, _, attribute = weight.rpartition(".")
    bias = f"{path}.bias" if path else "bias"
    if attribute == "weight" and shared.get(bias) == 1 and isinstance(host.get_submodule(path).bias, nn.Parameter):
        return bias
    if norm is None:
        return None
    module = host.get_submodule(norm)
    mean = f"{norm}.running_mean"
    return mean if isinstance(module, _BatchNorm) and module.running_mean is not None and shared[mean] == 1 else None


def added_consumers(host: nn.Module, consumers: Mapping[str, ConsumerLayer], added: Mapping[str, bool]) -> list[str]:
    """Return the weights of layers whose output is only used in a sum, directly or through a recorded norm."""

    def is_known(consumer: ConsumerLayer, normed: bool) -> bool:
        if consumer.norm is None:
            return not normed
        norm = host.get_submodule(consumer.norm)
        return normed and isinstance(norm, _BatchNorm) and norm.running_var is not None

    return [
        weight
        for weight, normed in added.items()
        if weight in consumers and not consumers[weight].depthwise and is_known(consumers[weight], normed)
    ]


def output_scale(host: nn.Module, consumer: ConsumerLayer) -> Tensor:
    """Return the factors of the following norm for the layer's outputs, in evaluation mode; ones without a norm."""
    norm = None if consumer.norm is None else host.get_submodule(consumer.norm)
    if not isinstance(norm, _BatchNorm) or norm.running_var is None:
        return torch.ones(len(consumer.out_gates), dtype=torch.float64)
    gain = torch.rsqrt(norm.running_var.double().cpu() + norm.eps)
    return gain if norm.weight is None else gain * norm.weight.detach().double().cpu()


def own_factors(plan: Plan, consumer: ConsumerLayer, gates: Tensor, axis: int) -> Tensor:
    """Return the factors of the gates in the layer's own weight: of its outputs (axis 0) or inputs (axis 1)."""
    places = consumer.gates if axis else consumer.out_gates
    return gate_values(places, gates) if (consumer.weight, axis) in plan.sites else torch.ones(len(places))


def gate_values(places: Tensor, gates: Tensor) -> Tensor:
    """Return the gate at every position; 1 for positions without a gate."""
    return torch.cat([gates.cpu().float(), torch.ones(1)])[places]  # NO_GATE = -1 picks the last entry


# -- inputs of a layer ----------------------------------------------------------------------------------------------
# As a matrix: one row for each position of its output, one column for each weight of a filter.


def rows_for(weight: Tensor) -> int:
    """Return the number of patches to use for a layer: enough for each weight that is fitted, and not much more.

    >>> rows_for(torch.zeros(16, 16, 3, 3)), rows_for(torch.zeros(512, 512, 3, 3))
    (65536, 4340)
    """
    kernel = weight[0, 0].numel() if is_wide(weight) else 1  # each patch of a wide layer gives several rows
    columns = weight[0].numel() // kernel
    return max(8 * columns, min(ROWS, ELEMENTS // columns)) // kernel


def patches(call: LayerCall, places: Tensor) -> Tensor:
    """Return the inputs of each of these output positions, as (images · positions, inputs · kernel positions).

    ``places`` are positions in the flattened output of one image; for a linear layer, rows of its input.
    """
    x = _precise(call.input.detach())
    if call.kind == "linear":
        return x.reshape(-1, x.shape[-1])[places.to(x.device)]
    under = _under_kernels(call, x)
    sizes = under.shape[2 : 1 + under.dim() // 2]
    index: tuple[Any, ...] = (slice(None), slice(None), *torch.unravel_index(places.to(x.device), sizes))
    taken = under[index]
    return taken.transpose(1, 2).reshape(len(under) * len(places), -1)


def by_channels(rows: Tensor, kernel: int) -> Tensor:
    """Return (rows · kernel positions, channels): every position of the kernel becomes a separate row."""
    return rows.reshape(len(rows), -1, kernel).transpose(1, 2).flatten(0, 1)


def outputs_at(tensor: Tensor, call: LayerCall, places: Tensor) -> Tensor:
    """Return (images · positions, outputs) of a tensor that has the shape of the layer's output."""
    tensor = _precise(tensor.detach())
    if call.kind == "linear":
        return tensor.reshape(-1, tensor.shape[-1])[places.to(tensor.device)]
    tensor = _batched(tensor, call)
    read = tensor.flatten(2)[:, :, places.to(tensor.device)]
    return read.transpose(1, 2).reshape(-1, tensor.shape[1])


def reads_tokens(call: LayerCall) -> bool:
    """Return True if a linear layer reads (batch, …, tokens, features)."""
    return call.kind == "linear" and call.input.dim() > 2


def token_weights(total: Tensor, call: LayerCall, places: Tensor) -> Tensor:
    """Return the weight of each of these tokens: one over the sum of squares of the sum with the layer's output.

    Norms divide every token by its own size, so errors are counted relative to it. Without weights, the result would
    depend only on the few tokens that are a hundred times as large as all others in transformers.
    """
    return 1 / outputs_at(total, call, places).square().sum(1).clamp_min(1e-12)


def choose_places(call: LayerCall, rows: int, seed: int) -> Tensor:
    """Choose random output positions, about ``rows`` for a batch; the same ones for the same seed."""
    rng = torch.Generator().manual_seed(seed)
    if call.kind == "linear":
        count, per_place = call.input[..., 0].numel(), 1
    else:
        x = _batched(call.input, call)
        under = _under_kernels(call, x[:1, :1])
        count, per_place = math.prod(under.shape[2 : 1 + under.dim() // 2]), len(x)
    wanted = max(1, rows // per_place)
    return torch.arange(count) if wanted >= count else torch.randperm(count, generator=rng)[:wanted].sort().values


def _precise(x: Tensor) -> Tensor:
    """Convert to at least float32, because squares underflow or overflow in half precision."""
    return x if x.dtype == torch.float64 else x.float()


def _batched(x: Tensor, call: LayerCall) -> Tensor:
    return x.unsqueeze(0) if x.dim() == call.arguments["weight"].dim() - 1 else x


def _setting(call: LayerCall, name: str, default: int, count: int) -> list[int]:
    value = call.arguments.get(name, default)
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _paddings(call: LayerCall, kernel: Sequence[int]) -> list[tuple[int, int]]:
    padding = call.arguments.get("padding", 0)
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(_setting(call, "dilation", 1, len(kernel)), kernel, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in _setting(call, "padding", 0, len(kernel))]


def _under_kernels(call: LayerCall, x: Tensor) -> Tensor:
    """Return a view of a convolution's padded input: (batch, channels, output positions …, kernel positions …)."""
    x, kernel = _batched(x, call), call.arguments["weight"].shape[2:]
    paddings = _paddings(call, kernel)
    if any(before or after for before, after in paddings):
        x = F.pad(x, [side for pair in reversed(paddings) for side in pair])
    steps = [_setting(call, name, 1, len(kernel)) for name in ("stride", "dilation")]
    for dim, (k, stride, dilation) in enumerate(zip(kernel, *steps, strict=True), 2):
        x = x.unfold(dim, dilation * (k - 1) + 1, stride)[..., ::dilation]
    return x
