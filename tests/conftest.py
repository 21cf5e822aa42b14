"""What all tests share: the kinds of tests, and what makes them quicker without changing what they see."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.kinds import KINDS, kind_of
from tests.plans import remember_plans

remember_plans()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="Leave out the slow kinds of tests (tests/kinds.py).")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even import what is left out: it would take as long as many tests."""
    return True if config.getoption("--fast") and kind_of(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        kind = kind_of(item.path)
        if kind is not None:
            item.add_marker(kind)
    if config.getoption("--fast"):
        items[:] = [item for item in items if not any(item.get_closest_marker(kind) for kind in (*KINDS, "slow"))]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take everything that was imported out of the garbage collector's sight.

    Accelerate collects garbage after every phase of a run, and torch's modules are hundreds of thousands of objects.
    """
    gc.collect()
    gc.freeze()
