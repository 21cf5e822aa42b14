"""What all tests share: the kinds of tests, and what makes them quicker without changing what they see."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.forkserver import ForkServer
from tests.support.plans import remembered

SLOW = ("runs", "processes", "structures", "zoo", "fuzz", "integrations", "slow")

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, also in the runs that tests send it to


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help=f"Leave out what is marked {', '.join(SLOW)}.")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's home folder out of it: transformers copies there the code of every folder that it opens."""
    folder = tempfile.mkdtemp(prefix="depl0-tests-")
    os.environ["HF_MODULES_CACHE"] = folder  # read when transformers is imported
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a slow file with --fast: that would take as long as many tests."""
    if not config.getoption("--fast") or collection_path.suffix != ".py":
        return None
    marks = re.findall(r"^pytestmark = .*?mark\.(\w+)", collection_path.read_text(encoding="utf-8"), re.M)
    return True if set(marks) & set(SLOW) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        items[:] = [item for item in items if not any(item.get_closest_marker(kind) for kind in SLOW)]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's cache folder out of it."""
    os.environ["DEPL0_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def remembered_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analyse the few networks that most runs train once in a process; a file asks for it by ``usefixtures``."""
    monkeypatch.setattr("depl0.gated.make_plan", remembered)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Starts processes of their own that have imported everything already."""
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def _cheap_collections() -> None:
    """Keep full garbage collections cheap: Accelerate makes one after every phase of a run.

    What tests import and compile (torch.export, Transformers, ONNX, …) is a million objects in the end, which stay.
    """
    gc.collect()
    gc.freeze()
