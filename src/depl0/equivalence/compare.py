"""How far the outputs of two networks are apart, and at which layer it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from depl0._util.precision import cast
from depl0.analysis.propagate import Axis
from depl0.host.copies import run_host
from depl0.host.functional import call_with
from depl0.host.inputs import ExampleInputs, flatten_outputs

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""largest allowed error; float64 is the rule, float32 for networks that insist on it"""
_FLOOR = {torch.float64: 1e-6, torch.float32: 1e-2}
"""least share of the largest output that counts as its reaction, so that rounding never looks like a difference"""


def own_tolerance(host: nn.Module) -> float:
    """Return what may lie between two networks in the host's own precision."""
    half = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in host.parameters())
    return 0.05 if half else TOLERANCE[torch.float32]


def gated_call(reference: nn.Module, overrides: Mapping[str, Tensor]) -> Callable[[ExampleInputs], Any]:
    """Return what calls a network with these parameters in place of its own."""

    def gated(case: ExampleInputs) -> Any:
        return case.call(lambda *args, **kwargs: call_with(reference, overrides, args, kwargs))

    return gated


def gives_the_same_twice(gated: Callable[[ExampleInputs], Any], case: ExampleInputs) -> bool:
    """Tell whether a network is deterministic in evaluation mode."""
    with torch.no_grad():
        return max_error([gated(case)], [gated(case)], torch.float32) <= TOLERANCE[torch.float32]


def converted(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Convert a network's floating-point and complex numbers, in place."""
    model._apply(lambda tensor: cast(tensor, dtype))  # Module.to would drop imaginary parts
    return model


BOUND = (
    "something in the network is bound to the original object, or kept outside of it: a lambda or hook over self, a "
    "weak reference, a class attribute."
)


def copy_stands_for(
    host: nn.Module, case: ExampleInputs, output: Any, overrides: Mapping[str, Tensor] | None = None
) -> bool:
    """Tell whether the host itself gives what a copy has given: a copy may not take everything along."""
    return max_error([run_host(host, case, overrides)], [output], torch.float32) <= TOLERANCE[torch.float32]


def max_error(wanted: list[Any], found: list[Any], dtype: torch.dtype) -> float:
    """Return the largest difference of two networks' outputs over several inputs.

    It is relative to how much the wanted outputs change from input to input, not to their size: a large bias in the
    last layer must not hide a wrong channel.
    """
    return max(case_errors(wanted, found, dtype))


def case_errors(wanted: list[Any], found: list[Any], dtype: torch.dtype) -> list[float]:
    """Return the difference of two networks' outputs for every input, relative to how much the wanted ones change."""
    flat_wanted, flat_found = [flatten_outputs(w) for w in wanted], [flatten_outputs(f) for f in found]
    return [
        float("inf") if want[1] != have[1] else _leaves_error(want, have[0], flat_wanted, dtype)
        for want, have in zip(flat_wanted, flat_found, strict=True)
    ]


def _leaves_error(want: tuple[list[Any], Any], have: list[Any], all_wanted: list[Any], dtype: torch.dtype) -> float:
    worst = 0.0
    for place, (a, b) in enumerate(zip(want[0], have, strict=True)):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            if isinstance(a, Tensor) or isinstance(b, Tensor) or (a is not b and a != b):
                return float("inf")
            continue
        if a.shape != b.shape:
            return float("inf")
        like = [w[0][place] for w in all_wanted if w[1] == want[1] and isinstance(w[0][place], Tensor)]
        largest = max(_largest(o) for o in like)
        scale = max(largest if (reaction := _reaction(like)) is None else reaction, _FLOOR[dtype] * largest)
        difference = _largest_difference(a, b)
        worst = max(worst, difference / scale if scale > 0 else difference)
    return worst


def _reaction(outputs: list[Tensor]) -> float | None:
    """Return how much outputs change from input to input; None where no two of them can be compared."""
    first = outputs[0]
    pairs = [(first, o) for o in outputs[1:] if o.shape == first.shape]
    if first.dim() > 0:  # a larger batch is several inputs
        larger = [o for o in outputs[1:] if o.shape[1:] == first.shape[1:] and len(o) > len(first)]
        pairs += [(first, o[: len(first)]) for o in larger]
        pairs = pairs or [(o[:1], o[1:]) for o in outputs if len(o) > 1]
    return max((_largest(_doubles(b) - _doubles(a)) for a, b in pairs), default=None)


def _doubles(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in float64, both parts of complex ones."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _largest(tensor: Tensor) -> float:
    return float(_doubles(tensor).nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def _largest_difference(a: Tensor, b: Tensor) -> float:
    a, b = _doubles(a), _doubles(b)
    difference = (a - b).abs()[~((a == b) | (a.isnan() & b.isnan()))]
    largest = float(difference.max()) if difference.numel() else 0.0
    return largest if largest == largest else float("inf")


def first_difference(
    gated: Callable[[ExampleInputs], Any],
    reference: nn.Module,
    candidate: nn.Module,
    case: ExampleInputs,
    positions: Mapping[Axis, Tensor],
    tolerance: float,
    run: Callable[[ExampleInputs], Any] | None = None,
) -> str:
    """Return the first layer, in order of execution, whose outputs differ in the channels that are kept."""
    dense, compact = dict(reference.named_modules()), dict(candidate.named_modules())
    wanted = _layer_outputs(reference, lambda: gated(case))
    found = _layer_outputs(candidate, lambda: run(case) if run is not None else case.call(candidate))
    for (layer, want), (other, have) in zip(wanted, found, strict=False):
        if layer != other:
            return layer
        if type(dense[layer]) is not type(compact[layer]):
            continue  # removed on purpose; what it does is seen in the next layer
        if want.shape != have.shape:
            keep = _kept_outputs(layer, dense[layer], positions)
            if keep is None:
                continue  # an activation, say: its channels are those of a layer that agreed
            want = _select(want, have.shape, keep)
        if want.shape != have.shape or _largest_difference(want, have) > tolerance * max(_largest(want), 1e-30):
            return layer
    return wanted[len(found)][0] if len(found) < len(wanted) else ""


def _kept_outputs(layer: str, module: nn.Module, positions: Mapping[Axis, Tensor]) -> Tensor | None:
    """Return the positions that stay of a layer's output channels, where its parameters tell."""
    transposed = isinstance(module, _ConvNd) and module.transposed
    axes = [(f"{layer}.bias", 0), (f"{layer}.running_mean", 0), (f"{layer}.weight", 1 if transposed else 0)]
    return next((positions[axis] for axis in axes if axis in positions), None)


def _select(want: Tensor, shape: torch.Size, keep: Tensor) -> Tensor:
    """Take the kept channels along the dimension in which two shapes differ."""
    differing = [dim for dim in range(want.dim()) if want.dim() == len(shape) and want.shape[dim] != shape[dim]]
    if len(differing) != 1 or int(keep.max()) >= want.shape[differing[0]]:
        return want
    return want.index_select(differing[0], keep.to(want.device))


def _layer_outputs(model: nn.Module, run: Callable[[], Any]) -> list[tuple[str, Tensor]]:
    """Run a network and collect the outputs of its leaf modules; a crash ends the list."""
    outputs: list[tuple[str, Tensor]] = []
    handles = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None:

            def note(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
                if isinstance(output, Tensor):
                    outputs.append((name, output.detach().clone()))

            handles.append(module.register_forward_hook(note))
    try:
        with torch.no_grad():
            run()
    except Exception:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return outputs
