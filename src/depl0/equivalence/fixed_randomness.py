"""Fixed randomness, so that two networks of different widths can be compared in training mode.

Both draw as many random numbers as they have channels, so the same seed does not give the same numbers. Here every draw
gives the same value everywhere instead: dropout drops nothing, stochastic depth keeps its branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from depl0._util.random import isolated_random

_FILLED = {
    "bernoulli": 1.0, "rand": 0.5, "rand_like": 0.5, "randn": 0.5, "randn_like": 0.5, "uniform": 0.5, "normal": 0.5,
    "normal_functional": 0.5, "exponential": 0.5, "log_normal": 0.5, "cauchy": 0.5, "geometric": 1.0, "random": 0,
    "randint": 0, "randint_like": 0, "poisson": 1.0,
}  # fmt: skip


class UnfixedError(Exception):
    """An operator draws random numbers in a way that cannot be fixed."""


class _Fixed(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        given = {argument.name: place for place, argument in enumerate(func._schema.arguments)}
        if "dropout_p" in given:
            place = given["dropout_p"]
            args, kwargs = (*args[:place], 0.0, *args[place + 1 :]), {**kwargs}
            kwargs.pop("dropout_p", None)
            return func(*args, **kwargs)
        if name not in _FILLED:
            raise UnfixedError(name)
        drawn = func(*args, **kwargs)
        low = kwargs.get("low", args[given["low"]] if "low" in given and given["low"] < len(args) else None)
        value = low if isinstance(low, int) else _FILLED[name]
        return drawn.fill_(value) if isinstance(drawn, Tensor) else drawn


@contextmanager
def fixed_randomness() -> Iterator[None]:
    """Let every random operator of torch give the same values, and Python's own generator the same numbers."""
    with isolated_random(0), _Fixed():  # type: ignore[no-untyped-call]
        yield
