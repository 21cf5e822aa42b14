"""What all tests share: the kinds of tests, and what makes them quicker without changing what they see."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.faults.forkserver import ForkServer
from tests.kinds import KINDS, kind_of
from tests.plans import remember_plans

remember_plans()

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


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


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Starts processes of their own that have imported everything already."""
    made = ForkServer()
    yield made
    made.close()


class Garbage:
    """Keeps full garbage collections cheap, by taking what has come to stay out of the collector's sight.

    Accelerate collects garbage after every phase of a run. What tests import and compile on their way (torch.export,
    Transformers, ONNX, …) is a million objects in the end, and each of those collections would go through all of them.
    """

    LIMIT = 0.04
    """seconds of processor time that a full collection may take"""

    def __init__(self) -> None:
        self._began = 0.0
        self._slow = True  # the first freeze is that of everything imported for collection
        gc.callbacks.append(self._collected)

    def freeze_when_slow(self) -> None:
        """Freeze everything that is alive, if the last collections have become slow; called between tests."""
        if self._slow:
            gc.collect()
            gc.freeze()
            self._slow = False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > self.LIMIT:
            self._slow = True


garbage = Garbage()


def pytest_collection_finish(session: pytest.Session) -> None:
    garbage.freeze_when_slow()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    garbage.freeze_when_slow()
