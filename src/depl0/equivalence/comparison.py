"""The single comparison of two networks: cases, precision and tolerance.

All checks that two networks compute the same outputs use these functions: the trial of a plan, the certificate of a
pruned model, a shrunk host, the probe of a loaded file, and the check of an exported one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depl0._util.random import deterministic_rng_ops
from depl0._util.tensors import cast
from depl0.equivalence.cases import Accepted, Case
from depl0.errors import Depl0Error
from depl0.host.calls import call_with
from depl0.host.copies import attributes_kept, isolated_deepcopy, lazy_copy, run_host
from depl0.host.inputs import ExampleInputs, TwoPasses, flatten_outputs, with_next_call
from depl0.host.network import modes_kept, module_stack, path_of

# -- tolerances --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """The largest allowed error in each precision."""

    float64: float
    float32: float
    half: float

    def at(self, dtype: torch.dtype | None, model: nn.Module | None = None) -> float:
        """Return the allowed error in a precision; None is the model's own."""
        if dtype is None and model is not None and is_half_precision(model):
            return self.half
        return self.float64 if dtype == torch.float64 else self.float32


def is_half_precision(model: nn.Module) -> bool:
    """Return True if a network has parameters in half precision."""
    return any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters())


NETWORKS = Tolerance(float64=1e-7, float32=1e-3, half=0.05)
"""Two networks, relative to the change of the outputs with the input: rounding accumulates over a hundred layers."""
FILES = 1e-5
"""A file in another runtime, in float32, relative to the largest output."""
INT8_FILES = 0.05
"""The same for a quantized file: if a sum of floats is rounded differently, an output moves by whole steps."""
PROBES = 1e-2
"""A file on another device or version of torch: a few sampled outputs relative to their spread."""
_FLOOR = Tolerance(float64=1e-6, float32=1e-2, half=1e-2)
"""Smallest fraction of the largest output that counts as its change, so that rounding is never a difference."""


# -- errors of outputs -------------------------------------------------------------------------------------------------


def relative_error(wanted: Tensor, found: Tensor, scale: float | None = None) -> float:
    """Return the largest difference of two tensors, relative to ``scale`` or the largest wanted value.

    Equal infinities and NaN in the same places do not count as a difference.

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

    It is relative to the change of the wanted outputs from input to input, not to their size: a large bias in the last
    layer must not hide a wrong channel.
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
        scale = own if change is None else min(own, change)  # not relative to the outputs of a larger input
        worst = max(worst, relative_error(a, b, max(scale, floor * largest)))
    return worst


def _change(outputs: list[Tensor]) -> float | None:
    """Return the change of outputs from input to input; None if no two of them can be compared."""
    first = outputs[0]
    pairs = [(first, o) for o in outputs[1:] if o.shape == first.shape]
    if first.dim() > 0:  # a larger batch is several inputs
        larger = [o for o in outputs[1:] if o.shape[1:] == first.shape[1:] and len(o) > len(first)]
        pairs += [(first, o[: len(first)]) for o in larger]
        pairs = pairs or [(o[:1], o[1:]) for o in outputs if len(o) > 1]
    return max((_largest(_doubles(b) - _doubles(a)) for a, b in pairs), default=None)


def _doubles(tensor: Tensor) -> Tensor:
    """Return a tensor's elements in float64, with both parts of complex numbers."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _largest(tensor: Tensor) -> float:
    return float(_doubles(tensor).nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def _largest_difference(a: Tensor, b: Tensor) -> float:
    a, b = _doubles(a), _doubles(b)
    difference = (a - b).abs()[~((a == b) | (a.isnan() & b.isnan()))]
    largest = float(difference.max()) if difference.numel() else 0.0
    return largest if largest == largest else float("inf")


# -- two networks ------------------------------------------------------------------------------------------------------


@final
class InPrecision(TorchFunctionMode):
    """Runs a network in another precision without a copy: every parameter is converted where it is used.

    In float64, casts to float32 are executed as casts to float64. Language models normalise and attend in float32
    whatever their precision is. The functions that are compared stay the same; only their rounding is missing, in both
    networks.

    >>> with InPrecision(torch.float64):
    ...     torch.zeros(1, dtype=torch.float16).float().dtype, nn.Parameter(torch.ones(1)).exp().dtype
    (torch.float64, torch.float64)

    Args:
        dtype: the precision.
        tensors: tensors to convert, besides parameters.
    """

    def __init__(self, dtype: torch.dtype, tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._dtype = dtype
        self._tensors = {id(tensor) for tensor in tensors}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.float and self._dtype == torch.float64:
            func = Tensor.double
        name = getattr(func, "__name__", "")
        if name in _PROPERTIES:  # of one tensor: nearly all are the same in any precision
            found = func(*args, **(kwargs or {}))
            if not self._is_converted(args[0]):
                return found
            if isinstance(found, torch.dtype):
                return cast(torch.empty(0, dtype=found), self._dtype).dtype
            return cast(found, self._dtype) if isinstance(found, Tensor) else found  # for example p.T
        if name == "embedding":  # a large table, of which few rows are read
            return cast(func(*args, **(kwargs or {})), self._dtype)
        is_written = name.startswith("__set") or (name.endswith("_") and not name.endswith("__"))
        converted = (*args[:is_written], *map(self._convert, args[is_written:]))
        return func(*converted, **{key: self._convert(value) for key, value in (kwargs or {}).items()})

    def _is_converted(self, value: object) -> bool:
        return isinstance(value, nn.Parameter) or id(value) in self._tensors

    def _convert(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(self._convert, value))
        if self._dtype == torch.float64 and value is torch.float32:
            return torch.float64
        return cast(value, self._dtype) if self._is_converted(value) else value


_PROPERTIES = {"__get__", "size", "dim", "numel", "nelement", "stride", "__len__", "is_floating_point", "is_complex"}


@dataclass(frozen=True)
class Subject:
    """A network to compare: in some precision (:class:`InPrecision`), with some tensors in place of its own.

    In training mode it runs with fixed random numbers.
    """

    model: nn.Module
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: torch.dtype | None = None
    """Precision in which it runs; None if nothing is converted."""

    @classmethod
    def copy_of(cls, model: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> Subject:
        """Return a copy of a network in evaluation mode and a precision."""
        copied = isolated_deepcopy(model).eval()
        copied._apply(lambda tensor: tensor if isinstance(tensor, nn.Parameter) else cast(tensor, dtype))
        parameters = dict(copied.named_parameters())
        for name in tensors.keys() & parameters.keys():
            parameters[name].data = lazy_copy(tensors[name])
        return cls(copied, {name: tensors[name].detach() for name in tensors.keys() - parameters.keys()}, dtype)

    @contextmanager
    def in_training(self, dtype: torch.dtype) -> Iterator[Subject]:
        """Provide the network in training mode and a precision; its buffers, attributes and modes do not change."""
        own = {**dict(self.model.named_buffers()), **self.tensors}
        buffers = {name: cast(own[name].detach(), dtype).clone() for name, _ in self.model.named_buffers()}
        with attributes_kept(self.model), modes_kept(self.model):
            self.model.train()
            yield Subject(self.model, {**self.tensors, **buffers}, dtype)

    def __call__(self, case: ExampleInputs) -> Any:
        """Run the network on inputs, converted to its precision."""
        inputs = case.map_tensors(partial(cast, dtype=self.dtype))
        fixed = deterministic_rng_ops() if self.model.training else nullcontext()
        converted = nullcontext() if self.dtype is None else InPrecision(self.dtype, self.tensors.values())
        with torch.no_grad(), fixed, converted:
            return inputs.call(self._run)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return call_with(self.model, self.tensors, args, kwargs) if self.tensors else self.model(*args, **kwargs)

        return with_next_call(call, kwargs, args, call(*args, **kwargs))

    def is_deterministic(self, case: ExampleInputs) -> bool:
        """Return True if the network computes the same outputs twice."""
        return max_error([self(case)], [self(case)]) <= NETWORKS.float32


@dataclass(frozen=True)
class Comparison:
    """The differences of two networks on every case."""

    cases: tuple[Case, ...]
    errors: tuple[float, ...]
    allowed: float
    layer: str = ""
    """The layer at which the second network fails."""
    failure: Exception | None = None
    """The exception of the second network on a case on which the first one runs."""

    @property
    def error(self) -> float:
        """Return the largest error."""
        return max(self.errors)

    @property
    def agrees(self) -> bool:
        """Return True if every error is within the tolerance."""
        return self.error <= self.allowed

    @property
    def case(self) -> Case:
        """Return the case with the largest error."""
        return self.cases[self.errors.index(self.error)]


def compare(wanted: Accepted, candidate: Subject, allowed: float) -> Comparison:
    """Run a network on the cases of another one, and compare the outputs.

    A network that fails on a case has an infinite error; its first failure ends the comparison.
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
    reference: Subject,
    candidate: Subject,
    evaluated: Accepted,
    same_in_training: bool,
) -> Comparison | None:
    """Compare two networks in training mode; None if the larger one cannot run in it, or its randomness is not fixed.

    ``evaluated`` are the cases, with the larger network's outputs in evaluation mode. It need not be run again if it
    computes the same in training mode and the smaller one agrees. Norms over few values amplify rounding errors, so
    differences in float32 are checked again in float64.
    """
    outputs = {id(case): output for case, output in zip(evaluated.cases, evaluated.outputs, strict=True)}
    for case in sorted(evaluated.cases, key=lambda c: not c.what.startswith("batch of")):  # as in training
        if same_in_training:
            with candidate.in_training(torch.float32) as smaller:
                result = compare(Accepted((case,), (outputs[id(case)],)), smaller, NETWORKS.float32)
            if result.agrees:
                return result
        for dtype in (torch.float32, torch.float64):
            try:
                with reference.in_training(dtype) as larger:
                    wanted = larger(case.inputs)
            except Depl0Error:
                raise
            except Exception:
                break  # for example a batch of one, on which the original model cannot be trained either
            with candidate.in_training(dtype) as smaller:
                result = compare(Accepted((case,), (wanted,)), smaller, NETWORKS.at(dtype))
            if result.agrees or result.failure is not None:
                return result
        else:
            with reference.in_training(dtype) as larger:
                again = larger(case.inputs)
            if not max_error([wanted], [again], dtype) <= NETWORKS.at(dtype):
                return None  # it samples random numbers in a way that cannot be fixed
            return result
    return None


NOT_INDEPENDENT = (
    "something in the network is bound to the original object, or kept outside of it: a lambda or hook over self, a "
    "weak reference, a class attribute."
)


def stands_for(host: nn.Module, case: ExampleInputs, output: Any, tensors: Mapping[str, Tensor] | None = None) -> bool:
    """Return True if the host itself computes a copy's outputs: a copy may not be complete."""
    output = output.first if isinstance(output, TwoPasses) else output
    return max_error([run_host(host, case, tensors)], [output]) <= NETWORKS.float32
