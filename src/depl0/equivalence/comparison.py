"""The one comparison of two networks: cases, precision, tolerance, and where they differ first.

Whatever says that two networks compute the same says it with these functions: the trial of a plan, the certificate of a
compact network, a shrunk host, the probe of a loaded file, and the check of an exported one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from depl0._util.random import deterministic_rng_ops
from depl0._util.tensors import cast
from depl0.analysis.propagate import Axis
from depl0.equivalence.cases import Accepted, Case
from depl0.errors import Depl0Error
from depl0.host.caches import TwoPasses, with_next_call
from depl0.host.copies import private_copy, run_host
from depl0.host.functional import call_with
from depl0.host.inputs import ExampleInputs, flatten_outputs
from depl0.host.network import module_stack, path_of

# -- tolerances --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """The largest error that is allowed in each precision."""

    float64: float
    float32: float
    half: float

    def at(self, dtype: torch.dtype | None, model: nn.Module | None = None) -> float:
        """Return what is allowed in a precision; None is the model's own."""
        if dtype is None and model is not None and is_half_precision(model):
            return self.half
        return self.float64 if dtype == torch.float64 else self.float32


def is_half_precision(model: nn.Module) -> bool:
    """Return whether a network has parameters in half precision."""
    return any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())


NETWORKS = Tolerance(float64=1e-7, float32=1e-3, half=0.05)
"""two networks, relative to how much outputs change with the input: rounding adds up over a hundred layers"""
FOLDING = Tolerance(float64=1e-9, float32=1e-4, half=0.05)
"""one graph with other weights, relative to the largest output: one product per channel is rounded differently"""
FILES = 1e-5
"""a file in another runtime, in float32, relative to the largest output"""
INT8_FILES = 0.05
"""the same for a quantized file: if a sum of floats rounds the other way, an output moves by whole steps"""
PROBES = 1e-2
"""a file on another device or version of torch, a few sampled outputs relative to their spread"""
_FLOOR = Tolerance(float64=1e-6, float32=1e-2, half=1e-2)
"""least share of the largest output that counts as its change, so that rounding never looks like a difference"""


# -- how far outputs are apart -----------------------------------------------------------------------------------------


def relative_error(wanted: Tensor, found: Tensor, scale: float | None = None) -> float:
    """Return the largest difference of two tensors, relative to ``scale`` or the largest wanted value.

    Equal infinities and NaN in the same places are no difference.

    >>> relative_error(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 3.0]))
    0.25
    """
    if wanted.shape != found.shape:
        return float("inf")
    scale = _largest(wanted) if scale is None else scale
    difference = _largest_difference(wanted, found)
    return difference / scale if scale > 0 else difference


def max_error(wanted: Sequence[Any], found: Sequence[Any], dtype: torch.dtype | None = None) -> float:
    """Return the largest of :func:`case_errors`."""
    return max(case_errors(wanted, found, dtype))


def case_errors(wanted: Sequence[Any], found: Sequence[Any], dtype: torch.dtype | None = None) -> list[float]:
    """Return the difference of two networks' outputs for every input.

    It is relative to how much the wanted outputs change from input to input, not to their size: a large bias in the
    last layer must not hide a wrong channel.
    """
    flat_wanted, flat_found = [flatten_outputs(w) for w in wanted], [flatten_outputs(f) for f in found]
    return [
        float("inf") if want[1] != have[1] else _leaves_error(want, have[0], flat_wanted, _FLOOR.at(dtype))
        for want, have in zip(flat_wanted, flat_found, strict=True)
    ]


def _leaves_error(want: tuple[list[Any], Any], have: list[Any], all_wanted: list[Any], floor: float) -> float:
    worst = 0.0
    for place, (a, b) in enumerate(zip(want[0], have, strict=True)):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            if isinstance(a, Tensor) or isinstance(b, Tensor) or (a is not b and a != b):
                return float("inf")
            continue
        like = [w[0][place] for w in all_wanted if w[1] == want[1] and isinstance(w[0][place], Tensor)]
        own, largest, change = _largest(a), max(_largest(o) for o in like), _change(like)
        scale = own if change is None else min(own, change)  # not relative to what some larger input gives
        worst = max(worst, relative_error(a, b, max(scale, floor * largest)))
    return worst


def _change(outputs: list[Tensor]) -> float | None:
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


# -- two networks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A network as it is compared: in some precision, with some tensors in place of its own.

    In training mode, it runs with fixed randomness.
    """

    model: nn.Module
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    """precision of model, tensors and inputs; None where they are as they were"""

    @classmethod
    def copy_of(
        cls, model: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype | None, training: bool = False
    ) -> Subject:
        """Return a copy of a network in a precision and a mode."""
        copied = private_copy(model, dtype).train(training)
        return cls(copied, {name: cast(tensor.detach(), dtype) for name, tensor in tensors.items()}, dtype)

    def before_rounding(self, exact: Mapping[str, Tensor]) -> Subject:
        """Return the same network with tensors as they were before they were rounded to its own precision."""
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers()), **self.tensors}
        return replace(self, tensors={**self.tensors, **{n: t.to(own[n].dtype) for n, t in exact.items() if n in own}})

    def __call__(self, case: ExampleInputs) -> Any:
        """Run the network on inputs, converted to its precision."""
        inputs = case.map_tensors(partial(cast, dtype=self.dtype))
        with torch.no_grad(), deterministic_rng_ops() if self.model.training else nullcontext():
            return inputs.call(self._run)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return call_with(self.model, self.tensors, args, kwargs) if self.tensors else self.model(*args, **kwargs)

        return with_next_call(call, kwargs, args, call(*args, **kwargs))

    def is_deterministic(self, case: ExampleInputs) -> bool:
        """Return whether the network gives the same outputs twice."""
        return max_error([self(case)], [self(case)]) <= NETWORKS.float32


@dataclass(frozen=True)
class Comparison:
    """How far two networks are apart on every case."""

    cases: tuple[Case, ...]
    errors: tuple[float, ...]
    allowed: float
    layer: str = ""
    """where they differ first, once that was looked for"""
    failure: Exception | None = None
    """what the second network raised where the first one runs"""

    @property
    def error(self) -> float:
        """Return the largest error."""
        return max(self.errors)

    @property
    def agrees(self) -> bool:
        """Return whether every error is within the tolerance."""
        return self.error <= self.allowed

    @property
    def case(self) -> Case:
        """Return the case with the largest error."""
        return self.cases[self.errors.index(self.error)]


def compare(wanted: Accepted, candidate: Subject, allowed: float) -> Comparison:
    """Run a network on the cases that another one was run on, and compare the outputs.

    A network that does not run is as different as can be: its first failure ends the comparison.
    """
    found: list[Any] = []
    running: list[nn.Module] = []
    for case in wanted.cases:
        try:
            with module_stack() as running:
                found.append(candidate(case.inputs))
        except Depl0Error:
            raise
        except Exception as error:
            errors = (0.0,) * len(found) + (float("inf"),)
            return Comparison(wanted.cases[: len(errors)], errors, allowed, path_of(candidate.model, running), error)
    return Comparison(wanted.cases, tuple(case_errors(wanted.outputs, found, candidate.dtype)), allowed)


def compare_in_training(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    evaluated: Accepted,
    positions: Mapping[Axis, Tensor],
    same_in_training: bool,
) -> Comparison | None:
    """Compare two networks in training mode; None if the larger one does not run so, or its randomness is not fixed.

    ``evaluated`` are the cases, with what the larger one gives in evaluation mode. It need not be run again if it does
    the same in training mode, and the smaller one then gives the same. Norms over few values blow rounding up, so what
    differs in float32 is looked at again in float64.
    """
    outputs = {id(case): output for case, output in zip(evaluated.cases, evaluated.outputs, strict=True)}
    for case in sorted(evaluated.cases, key=lambda c: not c.what.startswith("batch of")):  # as in training
        if same_in_training:
            candidate = Subject.copy_of(compact, {}, torch.float32, training=True)
            result = compare(Accepted((case,), (outputs[id(case)],)), candidate, NETWORKS.float32)
            if result.agrees:
                return result
        for dtype in (torch.float32, torch.float64):
            try:
                wanted = Subject.copy_of(host, scaled, dtype, training=True)(case.inputs)
            except Depl0Error:
                raise
            except Exception:
                break  # a batch of one, say; the dense network does not train on it either
            candidate = Subject.copy_of(compact, {}, dtype, training=True)
            result = compare(Accepted((case,), (wanted,)), candidate, NETWORKS.at(dtype))
            if result.agrees or result.failure is not None:
                return result
        else:
            again = Subject.copy_of(host, scaled, dtype, training=True)(case.inputs)
            if not max_error([wanted], [again], dtype) <= NETWORKS.at(dtype):
                return None  # it draws random numbers in a way that is not fixed
            reference = Subject.copy_of(host, scaled, dtype, training=True)
            candidate = Subject.copy_of(compact, {}, dtype, training=True)
            return replace(result, layer=first_difference(reference, candidate, case, positions, 1e-6))
    return None


NOT_INDEPENDENT = (
    "something in the network is bound to the original object, or kept outside of it: a lambda or hook over self, a "
    "weak reference, a class attribute."
)


def stands_for(host: nn.Module, case: ExampleInputs, output: Any, tensors: Mapping[str, Tensor] | None = None) -> bool:
    """Return whether the host itself gives what a copy has given: a copy may not take everything along."""
    output = output.first if isinstance(output, TwoPasses) else output
    return max_error([run_host(host, case, tensors)], [output]) <= NETWORKS.float32


# -- where two networks differ first -----------------------------------------------------------------------------------


def first_difference(
    reference: Subject, candidate: Subject, case: Case, positions: Mapping[Axis, Tensor], tolerance: float
) -> str:
    """Return the first layer, in order of execution, whose outputs differ in the channels that are kept."""
    dense, compact = dict(reference.model.named_modules()), dict(candidate.model.named_modules())
    wanted, found = _layer_outputs(reference, case), _layer_outputs(candidate, case)
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
        if not relative_error(want, have, max(_largest(want), 1e-30)) <= tolerance:
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


def _layer_outputs(subject: Subject, case: Case) -> list[tuple[str, Tensor]]:
    """Run a network and collect the outputs of its leaf modules; a crash ends the list."""
    outputs: list[tuple[str, Tensor]] = []

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                outputs.append((name, output.detach().clone()))

        return hook

    leaves = [(name, module) for name, module in subject.model.named_modules() if not module._modules]
    handles = [module.register_forward_hook(note(name)) for name, module in leaves]
    try:
        subject(case.inputs)
    except Exception:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return outputs
