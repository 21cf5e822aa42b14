"""What ``depl0 latency`` prints for people."""

from __future__ import annotations

from typing import Any

from depl0.app.table import aligned

WORDS = ("network", "backend")
"""columns that are not figures"""


def latency_table(result: dict[str, Any]) -> str:
    """Return sizes, times and speed-ups as text."""
    threads = result["threads"]
    lines = [
        f"{result['subject']} on {result['device']}, {threads} thread{'s' if threads > 1 else ''}, "
        f"torch {result['torch']}; {result['clock']}, interleaved"
    ]
    networks = result["networks"]
    if networks:
        rows = [["network", "parameters", "MACs", "MACs left", "fewer MACs"]]
        for name, sizes in networks.items():
            share = sizes["macs_share"]
            fewer = "" if share == 1 else f"{1 / share:.2f}x"
            rows.append([name, f"{sizes['params']:,}", f"{sizes['macs']:,}", f"{share:.1%}", fewer])
        lines += ["", *aligned(rows, [title not in WORDS for title in rows[0]])]
    if result["timings"]:
        rows = [["backend", "batch", "network", "ms", "±", "best", "rounds", "as fast"]]
        for entry in result["timings"]:
            rows.append(
                [
                    entry["backend"],
                    str(entry["batch"]),
                    entry["network"],
                    f"{entry['median_ms']:.3f}",
                    f"{entry['spread_ms']:.3f}",
                    f"{entry['best_ms']:.3f}",
                    str(entry["rounds"]),
                    _faster(entry),
                ]
            )
        lines += ["", *aligned(rows, [title not in WORDS for title in rows[0]])]
        lines.append("ms: median ± half of the middle 50 %; best: mean of the fastest fifth")
        lines.append("as fast: median over rounds, with its 95 % interval")
    if result["skipped"]:
        lines.append("")
        lines += [
            f"skipped {entry['backend']}, batch {entry['batch']}: {entry['reason']}" for entry in result["skipped"]
        ]
    return "\n".join(lines)


def _faster(entry: dict[str, Any]) -> str:
    found = entry["speedup"]
    return "" if found is None else f"{found['ratio']:.2f}x ({found['low']:.2f} to {found['high']:.2f})"
