"""Code shared by benchmarks: options, rows that are saved as they are computed, and their provenance."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "reproduce" / "claims"))  # its intervals


def options(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the folder or file to write, described by a script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder or file to write")
    return parser


def network_options(doc: str, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Add what says which trained network is pruned on which data."""
    parser = options(doc)
    parser.add_argument("--data", help="for example cifar10:DIR")
    parser.add_argument("--weights", help="weights of the trained network")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--threads", type=int, default=1)
    return parser


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows that were computed before."""
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return rows


def save_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write all rows, one a line."""
    file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def provenance() -> dict[str, str]:
    """Return the commit and the versions of PyTorch and Python."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"commit": commit.stdout.strip(), "torch": torch.__version__, "python": platform.python_version()}


def mean_spread(values: Sequence[float], digits: int = 2, *, count: bool = False) -> str:
    """Return mean ± sample standard deviation, with the number of values if asked; a dash for none."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}" + (f" (n={len(values)})" if count else "")
