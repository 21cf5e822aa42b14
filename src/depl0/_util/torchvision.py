"""Import torchvision also where its compiled operators do not fit the installed torch.

torchvision describes its detection operators to torch while it is imported, and fails when the compiled ones cannot be
loaded, for instance a CUDA build beside a CPU torch. Its classifiers need none of them, so declaring the operators is
enough; detectors need non-maximum suppression, which is replaced by one in plain torch. Where torchvision finds its own
operators, nothing is changed. timm, transformers and lightning import torchvision
themselves: call `import_torchvision` before importing them.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")

# torch forgets an operator when the library that declared it is collected.
_declared: list[torch.library.Library] = []


@cache
def import_torchvision() -> Any:
    """Give the torchvision module; raise ImportError when it is not installed."""
    try:
        import torchvision
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        _forget_half_imported()
        _declare_operators()
        import torchvision

        torchvision.ops.nms = torchvision.ops.boxes.nms = nms
    return torchvision


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the boxes that non-maximum suppression keeps, as indices in decreasing order of their scores.

    >>> boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4]])
    >>> nms(boxes, torch.tensor([0.5, 0.9, 0.1]), iou_threshold=0.5)
    tensor([1, 2])
    """
    left, kept = scores.argsort(descending=True), []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        corners = torch.maximum(boxes[left, :2], boxes[best, :2]), torch.minimum(boxes[left, 2:], boxes[best, 2:])
        common = (corners[1] - corners[0]).clamp_min(0).prod(1)
        left = left[common <= iou_threshold * (areas[left] + areas[best] - common)]
    return torch.stack(kept) if kept else left


def _forget_half_imported() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        if not hasattr(torch.ops.torchvision, operator):
            library.define(operator + _SIGNATURE)
    _declared.append(library)
