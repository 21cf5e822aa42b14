"""What makes all tests quicker, and changes nothing that they see."""

from __future__ import annotations

import gc

import pytest

from tests.plans import remember_plans

remember_plans()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take everything that was imported out of the garbage collector's sight.

    Accelerate collects garbage after every phase of a run, and torch's modules are hundreds of thousands of objects.
    """
    gc.collect()
    gc.freeze()
