"""Proof that the compact network computes what the gated network computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from depl0._host import ExampleInputs, private_copy
from depl0._precision import as_precise_as_possible, cast
from depl0.analysis.plan import Plan
from depl0.analysis.propagate import Axis
from depl0.errors import CertificateError
from depl0.surgery.constant import Removal, remove
from depl0.surgery.scaling import scaled_parameters

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""largest allowed error; float64 is the rule, float32 for networks that insist on it"""
_FLOOR = {torch.float64: 1e-6, torch.float32: 1e-2}
"""least share of the largest output that counts as its reaction, so that rounding never looks like a difference"""


@dataclass(frozen=True)
class Certificate:
    """How far the outputs of two networks are apart on the same inputs."""

    max_error: float
    """largest difference, relative to how much the outputs change from input to input"""
    dtype: str
    inputs: int
    """number of inputs compared: the example, and random ones"""


def certify(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    removals: Sequence[Removal],
    example: ExampleInputs,
    positions: Mapping[Axis, Tensor],
    random_inputs: int = 2,
) -> Certificate:
    """Compare host-with-gates and compact network in evaluation mode; raise if they differ.

    ``removals`` are carried out on the copy that is compared, in its precision: a norm that is folded into a constant
    is rounded to the network's own precision, which is no difference between the two.
    """

    def gated_outputs(
        dtype: torch.dtype,
    ) -> tuple[nn.Module, Callable[[ExampleInputs], Any], list[ExampleInputs], list[Any]]:
        reference = private_copy(host).eval().to(dtype)
        overrides = {name: tensor.detach().to(dtype) for name, tensor in scaled.items()}
        cases = [case.map_tensors(lambda t: cast(t, dtype)) for case in random_cases(example, random_inputs)]

        def gated(case: ExampleInputs) -> Any:
            return torch.func.functional_call(reference, overrides, case.args, case.kwargs)

        with torch.no_grad():
            return reference, gated, cases, [gated(case) for case in cases]

    (reference, gated, cases, wanted), dtype = as_precise_as_possible(gated_outputs)
    _check_finite(wanted)
    candidate = private_copy(compact).eval().to(dtype)
    remove(candidate, removals)
    worst = max_error(wanted, [_run(candidate, case) for case in cases], dtype)
    if worst <= TOLERANCE[dtype]:
        return Certificate(worst, str(dtype).removeprefix("torch."), len(cases))
    if not gives_the_same_twice(gated, cases[0]):
        raise CertificateError(
            "the network's evaluation pass gives other outputs each time, on the same input. Nothing is returned.",
            hint="a pruned network can be compared only if randomness is for training.",
        )
    layer = first_difference(gated, reference, candidate, cases[0], positions, TOLERANCE[dtype])
    raise CertificateError(
        f"the compact network differs from the gated one by {worst:.2g} (allowed {TOLERANCE[dtype]:g}), "
        f"first at layer {layer or 'unknown'}. Nothing is returned.",
        hint=f"leave that layer's group out, e.g. groups=['-{layer or '<name>'}'], and report the network.",
    )


def _check_finite(wanted: list[Any]) -> None:
    """Refuse to compare a network that gives nothing but NaN and infinities."""
    for outputs in wanted:
        numbers = [
            leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        if numbers and not any(bool(leaf.isfinite().any()) for leaf in numbers):
            raise CertificateError(
                "the gated network gives no finite output, so nothing can be compared. Nothing is returned.",
                hint="its training has diverged: look for NaN in its parameters, or go back to an earlier checkpoint.",
            )


def gives_the_same_twice(gated: Callable[[ExampleInputs], Any], case: ExampleInputs) -> bool:
    """Tell whether a network is deterministic in evaluation mode."""
    with torch.no_grad():
        return max_error([gated(case)], [gated(case)], torch.float32) <= TOLERANCE[torch.float32]


def random_cases(example: ExampleInputs, count: int) -> list[ExampleInputs]:
    """Return the example, and ``count`` random inputs like it."""
    rng = torch.Generator().manual_seed(0)

    def random_like(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return torch.randn(tensor.shape, generator=rng).to(tensor.device, tensor.dtype)

    return [example] + [example.map_tensors(random_like) for _ in range(count)]


def _run(candidate: nn.Module, case: ExampleInputs) -> Any:
    try:
        with torch.no_grad():
            return candidate(*case.args, **case.kwargs)
    except Exception as error:  # a compact network that does not run is as different as can be
        return error


def max_error(wanted: list[Any], found: list[Any], dtype: torch.dtype) -> float:
    """Return the largest difference of two networks' outputs over several inputs.

    It is relative to how much the wanted outputs change from input to input, not to their size: a large bias in the
    last layer must not hide a wrong channel.
    """
    flat_wanted, flat_found = [pytree.tree_flatten(w) for w in wanted], [pytree.tree_flatten(f) for f in found]
    if any(w[1] != f[1] for w, f in zip(flat_wanted, flat_found, strict=True)):
        return float("inf")
    worst = 0.0
    for place in range(len(flat_wanted[0][0])):
        left, right = [w[0][place] for w in flat_wanted], [f[0][place] for f in flat_found]
        if not all(isinstance(value, Tensor) for value in left + right):
            if any(a is not b and a != b for a, b in zip(left, right, strict=True)):
                return float("inf")
            continue
        if any(a.shape != b.shape for a, b in zip(left, right, strict=True)):
            return float("inf")
        scale = max(_reaction(left), _FLOOR[dtype] * max(_largest(a) for a in left))
        for a, b in zip(left, right, strict=True):
            difference = _largest_difference(a, b)
            worst = max(worst, difference / scale if scale > 0 else difference)
    return worst


def _reaction(outputs: list[Tensor]) -> float:
    first = outputs[0]
    return max((_largest(o.double() - first.double()) for o in outputs[1:] if o.shape == first.shape), default=0.0)


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def _largest_difference(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
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
) -> str:
    """Return the first layer, in order of execution, whose outputs differ in the channels that are kept."""
    dense, compact = dict(reference.named_modules()), dict(candidate.named_modules())
    wanted = _layer_outputs(reference, lambda: gated(case))
    found = _layer_outputs(candidate, lambda: candidate(*case.args, **case.kwargs))
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
