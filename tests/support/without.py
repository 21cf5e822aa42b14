"""Programs that run in a new process in which some packages cannot be found."""

from __future__ import annotations

import os
import subprocess
import sys

HIDE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def run_without(hidden: tuple[str, ...], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program as if these packages were not installed."""
    return subprocess.run(
        [sys.executable, "-c", f"HIDDEN = {hidden!r}\n{HIDE}\n{program}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=300,
    )
