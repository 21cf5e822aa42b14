"""Every module can be imported by its dotted name, and no function hides one."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

import depl0
from depl0.errors import NotInstalledError


def refused(name: str) -> None:
    pytest.fail(f"{name} cannot be imported")


NAMES = [module.name for module in pkgutil.walk_packages(depl0.__path__, "depl0.", onerror=refused)]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".__main__")])
def test_every_module_has_its_dotted_name(name: str) -> None:
    try:
        module = import_module(name)
    except NotInstalledError as error:
        pytest.skip(str(error))
    parent, _, leaf = name.rpartition(".")
    assert getattr(sys.modules[parent], leaf) is module


def test_every_folder_is_a_package() -> None:
    """A folder without ``__init__.py`` would be left out above."""
    walked = {name.replace(".", "/") for name in NAMES}
    root = Path(depl0.__path__[0])
    files = {str(path.relative_to(root.parent).with_suffix("")) for path in root.rglob("*.py")}
    assert {file.removesuffix("/__init__") for file in files} - walked == {"depl0"}
