"""Detect non-finite values at every check, and never save them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from depl0.app.runtime.processes import any_rank
from depl0.errors import DivergedError, InputError
from depl0.gated import GatedModel


def check(accelerator: Accelerator, wrong: str | None, where: str) -> None:
    """Raise in all processes if anything is wrong in any."""
    (any_wrong,) = any_rank(accelerator, wrong is not None)
    if any_wrong:
        found = [wrong] if accelerator.num_processes == 1 else gather_object([wrong])
        raise diverged(f"{next(text for text in found if text)} ({where}).")


def diverged(message: str) -> DivergedError:
    """Return the error for a diverged training."""
    return DivergedError(
        message,
        hint="lower the learning rates (weight_optimizer.lr, gate_optimizer.lr), or set search.clip_norm, and start "
        "again.",
    )


def wrong_loss(loss: float, task_loss: float, step: int) -> str | None:
    """Describe a loss, summed over the steps of an epoch so far, that is not finite."""
    if math.isfinite(loss):
        return None
    return f"the loss became {loss} by step {step}" + ("" if not math.isfinite(task_loss) else ", by its penalty")


@torch.no_grad()
def wrong_parameter(model: nn.Module, step: int) -> str | None:
    """Describe the first parameter, norm statistic or log α that is not finite.

    Other buffers, such as masks, may be infinite.
    """
    named: dict[str, Tensor] = dict(model.named_parameters())
    norms = (name for name, module in model.named_modules() if isinstance(module, _NormBase))
    for name in norms:
        named |= {
            f"{name}.{own}": value
            for own, value in model.get_submodule(name).named_buffers()
            if value.is_floating_point()
        }
    if isinstance(model, GatedModel):
        named = {"log α": model.log_alpha(), **named}
    named = {name: value for name, value in named.items() if value.numel()}
    largest = [norm.float() for norm in torch._foreach_norm(list(named.values()), math.inf)] if named else []
    for name, value in zip(named, torch.stack(largest).tolist() if largest else (), strict=True):
        if not math.isfinite(value):
            return f"{name} became {value} by step {step}"
    return None


@contextmanager
def explain_batch_norm() -> Iterator[None]:
    """Add advice to the error that batch norm raises for a single value per channel."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            "batch norm needs more than one value per channel in training, but a process has a single image of a "
            "single pixel there.",
            hint="use a larger --batch-size (it is shared by all processes), or fewer processes.",
        ) from error
