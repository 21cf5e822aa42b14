"""Packages that only some data sets need, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from depl0.errors import DataError


def require(module: str, package: str, purpose: str) -> Any:
    """Import a module, or say which package has to be installed for what."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # installed, but something that it needs is not: its own message says more
        raise DataError(f"{package} is needed {purpose}, but not installed.", hint=f"pip install {package}") from error
