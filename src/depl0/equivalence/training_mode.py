"""Two networks side by side in training mode, with randomness held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.precision import cast
from depl0.analysis.propagate import Axis
from depl0.equivalence.cases import Case
from depl0.equivalence.compare import TOLERANCE, converted, first_difference, gated_call, max_error
from depl0.equivalence.fixed_randomness import held_randomness
from depl0.errors import Depl0Error
from depl0.host.copies import private_copy
from depl0.host.network import module_stack, path_of


@dataclass(frozen=True)
class TrainingDifference:
    """How far two networks are apart in training mode."""

    error: float
    allowed: float
    layer: str
    failure: Exception | None = None
    """what the smaller one raised, if it did not run"""


def training_difference(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    cases: Sequence[Case],
    positions: Mapping[Axis, Tensor],
) -> TrainingDifference | None:
    """Compare two networks in training mode; None if the larger one does not run so, or its randomness is not held.

    Norms over few values blow rounding up, so what differs in float32 is looked at again in float64.
    """
    for case in sorted(cases, key=lambda c: not c.what.startswith("batch of")):  # as in training
        for dtype in (torch.float32, torch.float64):
            try:
                wanted = _Trained(host, scaled, dtype)(case)
            except Depl0Error:
                raise
            except Exception:
                break  # a batch of one, say; the dense network does not train on it either
            running: list[nn.Module] = []
            try:
                small = _Trained(compact, {}, dtype)
                with module_stack() as running:
                    found = small(case)
            except Depl0Error:
                raise
            except Exception as error:
                return TrainingDifference(float("inf"), 0.0, path_of(small.model, running), error)
            worst = max_error([wanted], [found], dtype)
            if worst <= TOLERANCE[dtype]:
                return TrainingDifference(worst, TOLERANCE[dtype], "")
        else:
            if not max_error([wanted], [_Trained(host, scaled, dtype)(case)], dtype) <= TOLERANCE[dtype]:
                return None  # it draws random numbers in a way that was not held
            return TrainingDifference(
                worst, TOLERANCE[dtype], _first_difference(host, scaled, compact, case, positions)
            )
    return None


class _Trained:
    """Runs a copy of a network in training mode, in some precision, with randomness held."""

    def __init__(self, model: nn.Module, overrides: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.model, self.dtype = converted(private_copy(model).train(), dtype), dtype
        self.run = gated_call(self.model, {name: cast(tensor.detach(), dtype) for name, tensor in overrides.items()})

    def __call__(self, case: Case) -> Any:
        with torch.no_grad(), held_randomness():
            return self.run(case.inputs.map_tensors(lambda t: cast(t, self.dtype)))


def _first_difference(
    host: nn.Module,
    scaled: Mapping[str, Tensor],
    compact: nn.Module,
    case: Case,
    positions: Mapping[Axis, Tensor],
) -> str:
    large, small = _Trained(host, scaled, torch.float64), _Trained(compact, {}, torch.float64)
    return first_difference(
        lambda _: large(case), large.model, small.model, case.inputs, positions, 1e-6, lambda _: small(case)
    )
