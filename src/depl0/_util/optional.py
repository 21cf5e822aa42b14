"""Packages that only part of depl0 needs: what is missing, what for, and how to install it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depl0.errors import NotInstalledError


def require(module: str, package: str, purpose: str, *, extra: str = "cli") -> Any:
    """Import a module, or say which extra of depl0 brings its package.

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
            raise  # installed, but something that it needs is not: its own message says more
        raise missing(package, purpose, extra=extra) from error


def check_installed(*packages: str, purpose: str, extra: str = "cli") -> None:
    """Refuse to go on without these packages, whose modules bear the same names; none of them is imported.

    A folder of modules that cannot do without them calls this first, so that nobody meets a bare ImportError.
    """
    for package in packages:
        if find_spec(package) is None:
            raise missing(package, purpose, extra=extra)


def missing(package: str, purpose: str, *, extra: str = "cli") -> NotInstalledError:
    """Return the error for a package that is not installed."""
    return NotInstalledError(f"{package} is needed {purpose}, but not installed.", hint=install_command(extra))


def install_command(extra: str) -> str:
    """Return the command that installs an extra: of the clone that depl0 runs from, or of the installed package."""
    clone = Path(__file__).resolve().parents[3]
    where = f"-e '{clone}" if (clone / "pyproject.toml").is_file() else "'depl0"
    return f"pip install {where}[{extra}]'"
