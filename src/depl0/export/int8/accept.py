"""An int8 file that is good enough, or the figures that say why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from depl0._util.metric import ACCURACY, Metric
from depl0.errors import ExportError
from depl0.export.int8.quantizer import Quantizer, Run

Score = Callable[[Run], float]
"""the metric of a network that is called as the original is"""
Note = Callable[[str], None]

MOST_IN_FLOAT = 0.5
"""share of the layers that may stay in float; with more, the file is hardly smaller"""
SENSITIVITY_IMAGES = 64


@dataclass(frozen=True)
class Quantized:
    """An int8 file, what it is worth, and which of its layers are still in float."""

    data: bytes
    run: Run
    before: float | None
    """the metric of the float file; None: nothing was measured"""
    after: float | None
    in_float: tuple[str, ...] = ()
    weight_bits: int = 8
    """7 where products of 8 bits would saturate on the processor that judged the file"""


def quantize_within(
    quantizer: Quantizer,
    inputs: list[tuple[Tensor, ...]],
    score: Score | None,
    max_drop: float = 1.0,
    metric: Metric = ACCURACY,
    note: Note = lambda text: None,
) -> Quantized:
    """Write all layers in int8; if that loses too much, leave the most sensitive ones in float, or refuse.

    How many stay in float is doubled until the loss is within ``max_drop``, or half of the layers are.
    """
    data = quantizer.encode()
    run = quantizer.open(data)
    if score is None:
        return Quantized(data, run, None, None)
    before = score(quantizer.in_float())
    found = Quantized(data, run, before, score(run))
    if _drop(found, metric) <= max_drop:
        return found
    note(f"all in int8: {_figures(found, metric)}; looking for the layers that lose most")
    best, order, number = found, sensitive_layers(quantizer, inputs), 1
    while number <= len(order) * MOST_IN_FLOAT:
        in_float = order[:number]
        data = quantizer.encode(in_float)
        run = quantizer.open(data)
        found = Quantized(data, run, before, score(run), tuple(in_float))
        note(f"{number} of {len(order)} layers in float: {_figures(found, metric)}")
        if _drop(found, metric) <= max_drop:
            return found
        best = min(best, found, key=lambda each: _drop(each, metric))
        number *= 2
    left = f"with {len(best.in_float)} layers left in float ({', '.join(best.in_float)})" if best.in_float else ""
    raise ExportError(
        f"int8 loses too much: {_figures(best, metric)} at best{' ' + left if left else ''}; "
        f"--max-drop allows {metric.number(max_drop)}. Nothing is written.",
        hint="allow more with --max-drop, use more --calibration-images, or export in float.",
    )


def sensitive_layers(quantizer: Quantizer, inputs: list[tuple[Tensor, ...]]) -> list[str]:
    """Order layers by what each does to the outputs when it alone is in int8, the worst first."""
    some = tuple(tensor[:SENSITIVITY_IMAGES] for tensor in inputs[0])
    wanted = _flat(quantizer.in_float()(*some))
    errors = {}
    for layer in quantizer.layers:
        others = [other for other in quantizer.layers if other != layer]
        found = _flat(quantizer.open(quantizer.encode(others))(*some))
        errors[layer] = float((found - wanted).square().mean())
    return sorted(errors, key=lambda layer: -errors[layer])


def _flat(outputs: object) -> Tensor:
    tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def _drop(found: Quantized, metric: Metric) -> float:
    assert found.before is not None and found.after is not None
    drop = found.before - found.after if metric.higher_is_better else found.after - found.before
    return drop if drop == drop else float("inf")


def _figures(found: Quantized, metric: Metric) -> str:
    assert found.before is not None and found.after is not None
    return f"{metric.label} {metric.show(found.before)} in float, {metric.show(found.after)} in int8"
