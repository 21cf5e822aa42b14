"""Import torchvision also where its compiled operators do not fit the installed torch.

torchvision describes its detection operators to torch while it is imported, and fails when the compiled ones cannot be
loaded, for instance a CUDA build beside a CPU torch. Its classifiers need none of them, so declaring the operators is
enough. Where torchvision finds its own, nothing is declared. timm, transformers and lightning import torchvision
themselves: call `import_torchvision` before importing them.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

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
    return torchvision


def _forget_half_imported() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        if not hasattr(torch.ops.torchvision, operator):
            library.define(operator + _SIGNATURE)
    _declared.append(library)
