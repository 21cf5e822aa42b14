"""Check the zoo and print its table: ``python -m tests.zoo [part of a name …]``.

Rows are kept in a file as they come (``--rows``), so that a run can be interrupted and continued.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import depl0
from tests.zoo.check import check
from tests.zoo.networks import NETWORKS, Entry

HEADER = f"{'network':<44} {'share':>6} {'error':>9} {'MACs':>6} {'least':>6} {'blocks':>6} {'time':>8}  not pruned"


def look(entry: Entry) -> dict[str, Any]:
    """Return the row of a network: exact, wrong, nothing to prune, refused in words, or failed."""
    try:
        row = check(entry, blocks=zlib.crc32(entry.name.encode()) % 3 == 0)
    except depl0.errors.NothingToPruneError as error:
        return {"name": entry.name, "result": "nothing", "why": str(error).splitlines()[1].strip()}
    except depl0.Depl0Error as error:
        return {"name": entry.name, "result": "refused", "why": f"{type(error).__name__}: {str(error)[:200]}"}
    except Exception as error:
        traceback.print_exc()
        return {"name": entry.name, "result": "failed", "why": f"{type(error).__name__}: {str(error)[:200]}"}
    return {**asdict(row), "result": "exact" if row.exact else "wrong"}


def line(row: dict[str, Any]) -> str:
    """Return a row of the table as text."""
    if row["result"] not in {"exact", "wrong"}:
        words = {"nothing": "nothing to prune", "refused": "REFUSED", "failed": "FAILED"}[row["result"]]
        return f"{row['name']:<44} {words}: {' '.join(row['why'].split())[:160]}"
    why = "; ".join(f"{text} [{count}]" for text, count in list(row["reasons"].items())[:3])
    blocks = "" if row["blocks"] is None else row["blocks"]
    numbers = f"{row['share']:>6.1%} {row['error']:>9.1e} {row['macs_left']:>6.1%} {row['least']:>6.1%} {blocks:>6}"
    return f"{row['name']:<44} {numbers} {row['seconds']:>6.1f} s  {why}{'  WRONG' * (row['result'] == 'wrong')}"


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the last line of the table."""
    results = [row["result"] for row in rows]
    words = {"exact": "exact and pruned", "nothing": "with nothing to prune", "refused": "refused", "failed": "failed"}
    counts = ", ".join(f"{results.count(key)} {text}" for key, text in words.items())
    return f"{len(rows)} networks: {counts}, {results.count('wrong')} wrong"


def main() -> int:
    """Check what is asked for; return 1 if anything is wrong or has failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="parts of names; none: all networks")
    parser.add_argument("--rows", type=Path, help="file of rows: those that are in it are not checked again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [e for e in NETWORKS if not options.patterns or any(p in e.name for p in options.patterns)]
    rows: dict[str, dict[str, Any]] = {}
    if options.rows is not None and options.rows.exists():
        rows = {row["name"]: row for row in map(json.loads, options.rows.read_text().splitlines())}
    print(HEADER)
    for entry in chosen:
        if entry.name in rows:
            continue
        rows[entry.name] = row = look(entry)
        print(line(row), flush=True)
        if options.rows is not None:
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    found = [rows[entry.name] for entry in chosen if entry.name in rows]
    print(summary(found))
    return int(any(row["result"] in {"wrong", "failed"} for row in found))


if __name__ == "__main__":
    sys.exit(main())
