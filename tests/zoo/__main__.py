"""Print the zoo's table: ``python -m tests.zoo [part of a name …]``."""

from __future__ import annotations

import sys
import traceback
import warnings

import depl0
from tests.zoo.check import check
from tests.zoo.networks import NETWORKS


def main(patterns: list[str]) -> int:
    """Check every network whose name contains one of the patterns; return the number of those that failed."""
    warnings.simplefilter("ignore")
    print(f"{'network':<44} {'share':>6} {'error':>9} {'MACs':>6} {'least':>6} {'time':>8}  frozen because")
    failed = pruned = wrong = 0
    chosen = [e for e in NETWORKS if not patterns or any(p in e.name for p in patterns)]
    for entry in chosen:
        try:
            row = check(entry)
            wrong += row.error > 1e-5
            pruned += row.error <= 1e-5
            print(row, "" if row.error <= 1e-5 else "  WRONG", flush=True)
            if row.sensitivity < 1e-3:
                print(f"    hardly reacts to its input: {row.sensitivity:.1e}", flush=True)
        except depl0.NothingToPruneError as error:
            failed += entry.prunable
            print(f"{entry.name:<44} nothing to prune: {str(error).splitlines()[1].strip()}", flush=True)
        except Exception as error:
            failed += 1
            print(f"{entry.name:<44} FAILED {type(error).__name__}: {str(error)[:200]}", flush=True)
            if not isinstance(error, depl0.Depl0Error):
                traceback.print_exc()
    print(f"{len(chosen)} networks: {pruned} exact and pruned, {failed} failed, {wrong} wrong")
    return failed + wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
