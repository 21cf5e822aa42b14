"""State of random number generators (Python, NumPy, and torch on every device in use), and deterministic operators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from depl0._util.process import exclusive


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(*, accelerators: bool = True) -> dict[str, Any]:
    """Return the state of every generator, as numbers and tensors.

    Args:
        accelerators: False excludes accelerators, whose generators are only used by networks.
    """
    _, numbers, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [torch.from_numpy(np.array(numbers, dtype=np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
    }
    if accelerators:
        state |= {kind: [generator.get_state() for generator in found] for kind, found in _accelerators().items()}
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a state returned by :func:`random_state`. Devices that are no longer available are skipped."""
    numbers, position, has_gauss, gauss = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state(("MT19937", numbers.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].cpu())
    for kind, generators in _accelerators().items():
        for generator, saved in zip(generators, state.get(kind, []), strict=False):
            generator.set_state(saved.cpu())


@contextmanager
def isolated_random(seed: int | None = None, *, accelerators: bool = True) -> Iterator[None]:
    """Restore every generator after the context, and seed them first if a seed is given. Threads take turns."""
    with exclusive():
        before = random_state(accelerators=accelerators)
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed)
            for generators in _accelerators().values() if accelerators else ():
                for generator in generators:
                    generator.manual_seed(seed)
        try:
            yield
        finally:
            set_random_state(before)


def _accelerators() -> dict[str, list[torch.Generator]]:
    """Return the generators of the accelerators in use. Accessing an unused accelerator would initialise it."""
    found: dict[str, list[torch.Generator]] = {}
    if torch.cuda.is_initialized():
        found["cuda"] = list(torch.cuda.default_generators)
    if torch.xpu.is_initialized():
        found["xpu"] = list(torch.xpu.default_generators)
    if torch.backends.mps.is_available():
        found["mps"] = [torch.mps._get_default_mps_generator()]
    return found


# -- fixed randomness --------------------------------------------------------------------------------------------------

_FILLED = {
    "bernoulli": 1.0, "rand": 0.5, "rand_like": 0.5, "randn": 0.5, "randn_like": 0.5, "uniform": 0.5, "normal": 0.5,
    "normal_functional": 0.5, "exponential": 0.5, "log_normal": 0.5, "cauchy": 0.5, "geometric": 1.0, "random": 0,
    "randint": 0, "randint_like": 0, "poisson": 1.0,
}  # fmt: skip


class UnfixedError(Exception):
    """Raised if an operator samples random numbers and has no deterministic replacement."""


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
def deterministic_rng_ops() -> Iterator[None]:
    """Replace random operators by deterministic ones:

    dropout drops nothing, stochastic depth keeps its branch. This allows two networks of different widths to be
    compared in training mode. The number of random values they sample depends on their channels, so the same seed would
    not give the same values. Python's own generator is seeded.
    """
    with isolated_random(0), _Fixed():  # type: ignore[no-untyped-call]
        yield
