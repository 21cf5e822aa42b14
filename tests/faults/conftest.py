from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.forkserver import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()
