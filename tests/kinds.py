"""What makes tests slow, by file: so that the fast majority can be run alone, and a kind of tests by its marker.

A file belongs to the first kind that names it. A single test in a fast file can carry a marker of its own.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

KINDS: dict[str, tuple[str, ...]] = {
    "zoo": ("zoo/*",),
    "fuzz": ("faults/test_fuzz*", "faults/test_hostile.py", "faults/test_limits.py"),
    "integrations": ("integrations/*", "export/*", "cli/test_export.py", "examples/*"),
    "processes": (
        "faults/*",
        "install/test_extras.py",
        "gated/test_distributed.py",
        "pruning/test_search_distributed.py",
        "runtime/test_processes.py",
        "reports/test_browser.py",
        "training/test_sync_norm.py",
    ),
    "runs": (
        "bench/*",
        "cli/test_[bcpst]*.py",
        "cli/test_latency.py",
        "cli/test_other_commands.py",
        "golden/test_golden_runs.py",
        "methods/test_harness.py",
        "runtime/test_compiling.py",
        "runtime/test_memory_format.py",
        "studies/test_study.py",
        "training/test_compaction*.py",
        "training/test_distill.py",
        "training/test_loop.py",
        "training/test_resume.py",
    ),
    "structures": (
        "analysis/test_structures.py",
        "pruning/test_every_structure.py",
        "pruning/test_search.py",
        "surgery/*",
        "gated/test_host_untouched.py",
        "models/test_spec.py",
        "select/test_budgets_kept.py",
    ),
}
ROOT = Path(__file__).parent


def kind_of(path: Path) -> str | None:
    """Return what makes the tests of a file slow; None: they are fast."""
    if not path.is_relative_to(ROOT) or not path.name.startswith("test_"):
        return None
    name = path.relative_to(ROOT).as_posix()
    return next((kind for kind, patterns in KINDS.items() if any(fnmatch(name, p) for p in patterns)), None)
