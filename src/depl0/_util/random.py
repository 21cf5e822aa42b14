"""The state of all random number generators: Python's, NumPy's, and torch's on the CPU and on accelerators in use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(*, accelerators: bool = True) -> dict[str, Any]:
    """Return the state of every generator, as numbers and tensors.

    Args:
        accelerators: False leaves out those of accelerators, which only draw numbers for networks.
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
    """Restore what :func:`random_state` returned; devices that are not there now are left out."""
    numbers, position, has_gauss, gauss = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state(("MT19937", numbers.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"].cpu())
    for kind, generators in _accelerators().items():
        for generator, saved in zip(generators, state.get(kind, []), strict=False):
            generator.set_state(saved.cpu())


@contextmanager
def isolated_random(seed: int | None = None, *, accelerators: bool = True) -> Iterator[None]:
    """Restore every generator afterwards; with a seed, start from it.

    >>> before = torch.get_rng_state()
    >>> with isolated_random(0):
    ...     first = torch.rand(3), random.random()
    >>> with isolated_random(0):
    ...     assert torch.equal(torch.rand(3), first[0]) and random.random() == first[1]
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
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
    """Return the generators of accelerators that have been used; asking an unused one would initialise it."""
    found: dict[str, list[torch.Generator]] = {}
    if torch.cuda.is_initialized():
        found["cuda"] = list(torch.cuda.default_generators)
    if torch.xpu.is_initialized():
        found["xpu"] = list(torch.xpu.default_generators)
    if torch.backends.mps.is_available():
        found["mps"] = [torch.mps._get_default_mps_generator()]
    return found
