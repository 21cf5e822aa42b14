"""``run.compile``: a training step whose network, gates included, is one compiled graph."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from depl0.errors import InputError

BACKEND = "inductor"


def compiled(network: nn.Module, device: torch.device) -> nn.Module:
    """Return a network that compiles itself when it is first called, and shares everything with the one given.

    The one given stays as it is: it is what is evaluated, saved and cut. Nothing that changes from step to step is a
    number in the graph (a budget's target, threshold and sharpness are tensors), so one graph serves a whole search;
    a second one is made when the warm-up ends, and one for every smaller host.
    """
    if BACKEND == "inductor" and device.type == "cpu":
        _check_compiler()
    torch.compiler.reset()  # graphs of networks that are gone would count towards the most there may be
    return cast(nn.Module, torch.compile(network, backend=BACKEND))


def _check_compiler() -> None:
    """Refuse before training what would fail in its first step."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise InputError(
            "run.compile is on, but torch.compile finds no C++ compiler for this device.",
            hint="install one (g++ or clang++) and name it in CXX, or leave --compile out.",
        ) from error
