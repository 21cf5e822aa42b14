"""Inputs and outputs of the host: example inputs, and the tensors inside any outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.process import user_defaults
from depl0.errors import InputError


@dataclass(frozen=True)
class ExampleInputs:
    """The inputs of the host: positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    others: tuple[ExampleInputs, ...] = ()
    """Further examples, for a network that accepts several kinds of inputs."""
    shared: frozenset[int] = frozenset()
    """Numbers of tensors that hold no entry per example, whatever their size: a (16, 16) mask beside a batch of 16."""

    @classmethod
    def of(cls, inputs: object, name: str = "example_inputs") -> ExampleInputs:
        """Accept a tensor, a tuple of positional arguments, a dict of keyword arguments, or a list of such examples.

        NumPy arrays are converted to tensors, and any other mapping, such as a tokenizer's BatchEncoding, to a dict.

        Raises:
            InputError: if ``inputs``, named ``name`` in the message, is something else, or holds no tensor or example.
        """
        if isinstance(inputs, ExampleInputs):
            return inputs
        if isinstance(inputs, list) and inputs:
            first, *others = [cls.of(example, name) for example in inputs]
            return cls(first.args, first.kwargs, tuple(others))
        inputs = as_tensors(dict(inputs) if isinstance(inputs, Mapping) else inputs)
        if isinstance(inputs, Tensor):
            example = cls((inputs,), {})
        elif isinstance(inputs, tuple):
            example = cls(inputs, {})
        elif isinstance(inputs, dict):
            if not all(isinstance(key, str) for key in inputs):
                raise InputError(f"{name} is a dict whose keys are not all argument names.")
            example = cls((), dict(inputs))
        else:
            raise InputError(
                f"{name} must be a tensor, a tuple of arguments or a dict of keyword arguments, "
                f"got {'an empty list' if isinstance(inputs, list) else type(inputs).__name__} instead.",
                hint="pass e.g. torch.randn(1, 3, 224, 224), or (x, mask) for a network with two inputs; "
                "a list of such examples is for a network that is called in several ways.",
            )
        if not example.tensors():
            raise InputError(f"{name} holds no tensor.", hint="pass the arguments of the network's forward.")
        if example.batch() == 0:
            raise InputError(f"{name} is an empty batch.", hint="pass at least one example.")
        return example

    def leaves(self) -> list[Any]:
        """Return all tensors and other leaves."""
        return list(pytree.tree_leaves((self.args, self.kwargs)))

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        return [leaf for leaf in self.leaves() if isinstance(leaf, Tensor)]

    def numbers(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors())

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the positional inputs; empty if not all inputs are floating-point tensors."""
        plain = all(isinstance(arg, Tensor) and arg.is_floating_point() for arg in self.args) and not self.kwargs
        return tuple(tuple(arg.shape) for arg in self.args) if plain else ()

    def batch(self) -> int:
        """Return the first dimension of the first tensor that has one."""
        return next((tensor.shape[0] for tensor in self.tensors() if tensor.ndim), 1)

    def per_example(self) -> list[int]:
        """Return the numbers of the tensors that are as long as the batch, without the shared ones."""
        batch, tensors = self.batch(), self.tensors()
        long = [number for number, tensor in enumerate(tensors) if tensor.ndim and tensor.shape[0] == batch]
        return [number for number in long if number not in self.shared]

    def part(self, start: int, end: int) -> ExampleInputs:
        """Return some of the examples of a batch."""
        own, numbers = self.per_example(), count()
        return self.alone().map_tensors(lambda tensor: tensor[start:end] if next(numbers) in own else tensor)

    def first(self) -> ExampleInputs:
        """Return the first example of a batch."""
        return self.part(0, 1)

    def alone(self) -> ExampleInputs:
        """Return this example without the other examples."""
        return replace(self, others=())

    def with_shared(self, shared: frozenset[int]) -> ExampleInputs:
        """Return the same inputs, of which these tensors hold no entry per example."""
        return replace(self, shared=shared)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> ExampleInputs:
        """Return the same structure with ``function`` applied to every tensor."""
        args, kwargs = pytree.tree_map_only(Tensor, function, (self.args, self.kwargs))
        return ExampleInputs(args, kwargs, tuple(other.map_tensors(function) for other in self.others), self.shared)

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a network with copies of these inputs, because it may modify them."""
        return self.alone().map_tensors(lambda tensor: tensor.detach().clone()).run(function)

    def run(self, function: Callable[..., Any]) -> Any:
        """Call a network with these inputs, without copying them."""
        with user_defaults():
            return function(*self.args, **self.kwargs)

    def on_device_of(self, model: nn.Module) -> ExampleInputs:
        """Return the same inputs on the device of the model's parameters."""
        device = next(model.parameters()).device
        return self.map_tensors(lambda t: t.to(device))

    def twice(self) -> ExampleInputs:
        """Return a batch of two for every tensor with a batch of one (batch norm cannot train on one value)."""
        return self.map_tensors(lambda t: torch.cat([t, t]) if t.dim() > 0 and t.shape[0] == 1 else t)


def as_tensors(inputs: Any) -> Any:
    """Return inputs with tensors in place of NumPy arrays; float64, NumPy's default, becomes torch's default.

    >>> as_tensors({"x": np.zeros(2), "flag": True})
    {'x': tensor([0., 0.]), 'flag': True}
    """

    def convert(array: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor

    return pytree.tree_map_only(np.ndarray, convert, inputs)


def flatten_outputs(outputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a network's outputs and their structure; dataclasses and other objects are flattened.

    Caches of keys and values do not count as outputs (:func:`with_next_call`).

    >>> flatten_outputs({"logits": 1, "state": (2, None)})[0]
    [1, 'tuple', 2, None]
    """
    return pytree.tree_flatten(_opened(outputs))


def output_tensors(outputs: Any) -> list[Tensor]:
    """Return every tensor in a network's outputs."""
    return [leaf for leaf in flatten_outputs(outputs)[0] if isinstance(leaf, Tensor)]


def _opened(outputs: Any) -> Any:
    kind = type(outputs)
    if isinstance(outputs, (Tensor, str, bytes, int, float, complex, nn.Module)) or outputs is None:
        return outputs
    if is_cache(outputs):
        return kind.__name__
    if isinstance(outputs, dict):
        return {str(key): _opened(value) for key, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return [kind.__name__, *(_opened(value) for value in outputs)]
    fields = _attributes(outputs)
    if not fields or callable(outputs):
        return outputs
    return {"": kind.__name__, **{str(key): _opened(value) for key, value in fields.items()}}


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, including those in slots."""
    found = {}
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot != "__dict__" and hasattr(value, slot):
                found[slot] = getattr(value, slot)
    return {**found, **getattr(value, "__dict__", {})}


# -- caches of language models -----------------------------------------------------------------------------------------

CACHE = "past_key_values"
_MASKS = ("attention_mask", "decoder_attention_mask")


class TwoPasses(NamedTuple):
    """The outputs of a network, and those of a next call with the cache that it returned.

    A cache of keys and values is meant for the network's own next call. A pruned network stores tensors of other widths
    in it, so caches are not compared; the outputs of a call that uses them are.
    """

    first: Any
    second: Any


def is_cache(value: object) -> bool:
    """Return True for a cache of transformers; the library is not imported for this check."""
    loaded = sys.modules.get("transformers.cache_utils")
    return loaded is not None and isinstance(value, loaded.Cache)


@contextmanager
def without_cache(network: nn.Module) -> Iterator[None]:
    """Stop a language model from returning a cache, which would hold the keys and values of all its layers."""
    configs = {id(config): config for module in network.modules() if (config := vars(module).get("config")) is not None}
    given = [(config, config.use_cache) for config in configs.values() if getattr(config, "use_cache", None)]
    try:
        for config, _ in given:
            config.use_cache = False
        yield
    finally:
        for config, value in given:
            config.use_cache = value


def with_next_call(function: Callable[..., Any], kwargs: Mapping[str, Any], args: tuple[Any, ...], outputs: Any) -> Any:
    """Call a network once more with the cache that it returned, on the last token; return the outputs of both calls.

    Outputs without a cache are returned unchanged, and so are those of a network that accepts no cache with these
    inputs.
    """
    cache = outputs.get(CACHE) if isinstance(outputs, Mapping) else None
    if not is_cache(cache) or CACHE in kwargs:
        return outputs
    following = {key: _continued(key, value) for key, value in kwargs.items()}
    second = function(*(_continued("", arg) for arg in args), **following, **{CACHE: cache})
    return TwoPasses(outputs, second)


def _continued(name: str, value: Any) -> Any:
    """Return the last token of tokens, or a mask that is longer by one."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    if name in _MASKS:
        return torch.cat([value, value[:, -1:]], dim=1)
    return value[:, -1:] if value.dim() == 2 or value.is_floating_point() else value
