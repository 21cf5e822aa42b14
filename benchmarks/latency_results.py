"""Write benchmarks/results/latency.md and latency.json from measurements.

python benchmarks/untrained.py vgg16 … --json > vgg16.json
python benchmarks/latency_budget.py --models mobilenet_v2 --json mobilenet_v2.json
python benchmarks/latency_results.py --speed vgg16.json … --budgets mobilenet_v2.json … --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from depl0.app.cli.latency_run import latency_table
from depl0.app.runs.folder import environment

GOAL, CLOSE, NEAR = 1.7, 0.03, 0.10

INTRODUCTION = """# Speed and latency budgets

Measured on one thread of a shared CPU while other programs kept both of its cores busy, so single figures are uncertain
by some per cent. Networks take turns; times are CPU time of the thread; speed-ups are ratios of the medians.
Nothing is trained: channels are ordered by the norms of their filters, and all groups (`groups="all"`) lose the
same share. How it is measured: [../latency.md](../latency.md). All figures: `latency.json`.
"""

EARLIER = """Two runs of VGG16 and one of ResNet-50, with all networks in the same order in every round. VGG16's
unrounded compact network, which always came right after the dense one, was then 5 to 8 % behind the one
built small: above the goal. So the order was made to change from round to round; in the one run since,
the gap is gone. That the fixed order caused it is likely, but was not tested by itself on a quiet
machine.
"""

PROVENANCE = """One run each, and one budget (0.6) for each network. The figures come from working copies of this code
before it was joined with other changes, not from the commit named below; those of the budgets were
measured in fixed order (dense, then compact). Multiples of 16 were not measured for ResNet-50. For
VGG16, rounding shows no gain beyond the noise."""


def ratio(dense: dict[str, Any], entry: dict[str, Any]) -> float:
    """Return how many times as fast a network is: the ratio of the medians, as in depl0.latency."""
    return float(dense["median_ms"] / entry["median_ms"])


def with_ratios(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the ratio of medians in the place of one that was recorded without its interval."""
    dense: dict[str, Any] = {}
    timings = []
    for entry in result["timings"]:
        if entry["speedup"] is None:
            dense = entry
        elif not isinstance(entry["speedup"], dict):
            entry = {**entry, "speedup": {"ratio": ratio(dense, entry)}}
        timings.append(entry)
    return {**result, "timings": timings}


def speed_lines(result: dict[str, Any]) -> list[str]:
    """Return the table printed by the command, and its conclusions about the goals."""
    lines = [f"## {result['subject']} at half of the MACs", "", "```", latency_table(result), "```", ""]
    best = {entry["network"]: entry for entry in result["timings"] if entry["backend"] == "onnxruntime"}
    for name, entry in best.items():
        if not name.startswith("compact"):
            continue
        small = best.get(name.replace("compact", "built small"))
        faster = entry["speedup"]["ratio"]
        reached = "reached" if faster >= GOAL else "not reached"
        line = f"- {name}, ONNX Runtime, batch 1: {faster:.2f}x as fast as dense (goal {GOAL}x: {reached})"
        if small is not None:
            off = 1 / ratio(small, entry) - 1
            near = "reached" if off <= CLOSE else "not reached"
            line += f"; {off:+.1%} against a network built small from the start (goal at most {CLOSE:.0%}: {near})"
        lines.append(line + ".")
    return [*lines, ""]


def earlier_lines(results: list[dict[str, Any]]) -> list[str]:
    """Return earlier results of the same commands, so that the last run is not shown in isolation."""
    lines = ["## Earlier runs of the same commands", "", EARLIER]
    lines += ["| run | network | as fast as dense, ONNX Runtime | against built small |", "|---|---|---|---|"]
    for number, result in enumerate(results, 1):
        best = {entry["network"]: entry for entry in result["timings"] if entry["backend"] == "onnxruntime"}
        for name, entry in best.items():
            if name.startswith("compact"):
                off = 1 / ratio(best[name.replace("compact", "built small")], entry) - 1
                faster = entry["speedup"]["ratio"]
                lines.append(f"| {number} | {result['subject']}, {name} | {faster:.2f}x | {off:+.1%} |")
    return [*lines, ""]


def budget_lines(results: list[dict[str, Any]]) -> list[str]:
    """Return the table of latency budgets."""
    lines = [
        "## Latency as a budget",
        "",
        "Eager PyTorch, batch 1. *tables*: the share that the tables foretold for the network that was chosen. *first",
        "try*: their error before anything was put right. *measured*: once more, on the finished network.",
        "",
        "| network | budget | tables | first try | tries | measured | off the budget | MACs left | within 10 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| {r['network']} | {r['budget']:.2f} | {r['predicted']:.3f} "
            f"| {r['first_predicted_over_measured'] - 1:+.1%} | {len(r['attempts'])} "
            f"| {r['measured']:.3f} | {r['off_budget']:+.1%} | {r['macs_left']:.3f} "
            f"| {'yes' if abs(r['off_budget']) <= NEAR else 'no'} |"
        )
    return [*lines, ""]


def main() -> None:
    """Read the measurements, write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", type=Path, nargs="*", default=[])
    parser.add_argument("--earlier", type=Path, nargs="*", default=[], help="runs that the last ones replace")
    parser.add_argument("--budgets", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    earlier = [with_ratios(json.loads(path.read_text())) for path in options.earlier]
    speed = [with_ratios(json.loads(path.read_text())) for path in options.speed]
    budgets = [entry for path in options.budgets for entry in json.loads(path.read_text())]
    lines = [INTRODUCTION]
    for result in speed:
        lines += speed_lines(result)
    if earlier:
        lines += earlier_lines(earlier)
    if budgets:
        lines += budget_lines(budgets)
    env = environment()
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    lines += [PROVENANCE, "", f"Written by `benchmarks/latency_results.py` at commit {env['commit']}; {packages}."]
    (options.out / "latency.md").write_text("\n".join(lines) + "\n")
    kept = {"environment": env, "speed": speed, "earlier": earlier, "budgets": budgets}
    (options.out / "latency.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
