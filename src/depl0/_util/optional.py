"""Optional packages that only parts of depl0 need, and errors that explain how to install a missing one."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depl0.errors import NotInstalledError


def require(module: str, package: str, purpose: str, *, extra: str = "cli") -> Any:
    """Import a module, or raise an error that names the extra of depl0 that installs it.

    >>> require("math", "Python", "to count").sqrt(4.0)
    2.0
    >>> require("no_such_module", "no-such-package", "for the digits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    depl0.errors.NotInstalledError: no-such-package is needed for the digits, but not installed.
    hint: pip install ...[cli]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # installed, but one of its own dependencies is not: the original message is more specific
        raise missing(package, purpose, extra=extra) from error


def check_installed(*packages: str, purpose: str, extra: str = "cli") -> None:
    """Raise if one of these packages is missing, without importing any of them.

    Their modules have the same names. A package of depl0 that requires them calls this first, so that users never see a
    bare ImportError.
    """
    for package in packages:
        if find_spec(package) is None:
            raise missing(package, purpose, extra=extra)


def missing(package: str, purpose: str, *, extra: str = "cli") -> NotInstalledError:
    """Return the error for a package that is not installed."""
    return NotInstalledError(f"{package} is needed {purpose}, but not installed.", hint=install_command(extra))


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for the clone that depl0 runs from or for the installed package."""
    clone = Path(__file__).resolve().parents[3]
    where = f"-e '{clone}" if (clone / "pyproject.toml").is_file() else "'depl0"
    return f"pip install {where}[{extra}]'"


# -- torchvision -------------------------------------------------------------------------------------------------------

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def import_torchvision() -> Any:
    """Import torchvision, even if its compiled operators do not match the installed torch.

    torchvision describes its detection operators to torch while it is imported, and fails when the compiled ones cannot
    be loaded, for instance a CUDA build beside a CPU torch. Its classifiers and backbones need none of them, so
    declaring the operators is enough. If torchvision finds its own operators, nothing is changed. timm, transformers
    and lightning import torchvision themselves: call this function before importing them.

    Raises:
        ImportError: torchvision is not installed.
    """
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    import torch

    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", _NMS)
    return import_module("torchvision")


def torchvision() -> Any:
    """Import torchvision, or raise an error that names the command that installs it."""
    try:
        return import_torchvision()
    except ImportError as error:
        package = "pillow" if error.name == "PIL" else "torchvision"  # torchvision itself needs pillow
        raise missing(package, "to read image files and MNIST") from error
