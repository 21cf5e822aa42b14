"""The page of benchmarks/paper_regime.py: every run, and the comparisons that RULES.md fixes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from paper_regime import CHOICE_SEED, PARTS

from depl0.app.table import markdown_grid
from depl0.paper.claims.statistics import Difference, Sample, difference, mean_over, overlap

LEAST_SEEDS, LEAST_RANGE = 3, 0.05
NETWORKS = {"vgg": "VGG16, an eighth of the channels", "resnet": "ResNet-20, half of the channels"}
PAIRS = (
    ("dep", "l0-hc"),
    ("dep", "fc-const"),
    ("fc-const", "l0-hc"),
    ("dep", "l0-hc-start"),
    ("l0-hc-start", "l0-hc"),
    *(("dep", arm) for part in PARTS[2:] for arm in part.arms),
)
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Measure:
    """What is compared, so that more is better."""

    title: str
    value: Callable[[Row], float]
    cost: str
    digits: int
    claimed: Callable[[str, float], float]
    """(network, mean of the second arm) -> the claimed effect"""
    decides: bool = True


MEASURES = (
    Measure("test accuracy, points", lambda r: r["test"], "macs_left", 2, lambda n, _: 0.3 if n == "vgg" else 0.7),
    Measure("evenness (less deviation of prune ratios)", lambda r: -r["unevenness"], "macs_left", 3, lambda *_: 0.05),
    Measure(
        "steps sooner settled",
        lambda r: -float(r["steps"] if r["settled_step"] is None else r["settled_step"]),
        "macs_left",
        0,
        lambda _, second: 0.2 * abs(second),
    ),
    Measure(
        "test accuracy at equal parameters, points",
        lambda r: r["test"],
        "params_left",
        2,
        lambda n, _: 0.3 if n == "vgg" else 0.7,
        decides=False,
    ),
)


def page(rows: Sequence[Row]) -> str:
    """Return the page in Markdown."""
    chosen = [row for row in rows if row["seed"] == CHOICE_SEED]
    compared = [row for row in rows if row["seed"] != CHOICE_SEED]
    parts = [
        "# The paper's regime, with controls",
        f"{len(compared)} runs, and {len(chosen)} for choices. [The rules](RULES.md) were fixed before the first run. "
        "Positive differences are in favour of the first arm; intervals are 95 %, paired by seed, at equal cost.",
    ]
    for network, title in NETWORKS.items():
        ours = [row for row in compared if row["network"] == network]
        if ours:
            parts += [f"## {title}", _runs_table(ours), *_comparisons(ours, network)]
    parts += ["## Choices (seed 100, held-out images)", _choices_table(chosen)]
    made = sorted({f"commit {row['made_with']['commit'][:7]}, torch {row['made_with']['torch']}" for row in rows})
    parts += [f"Written by `benchmarks/paper_regime.py` from `results.jsonl` ({'; '.join(made)})."]
    return "\n\n".join(parts) + "\n"


def _runs_table(rows: Sequence[Row]) -> str:
    cells = []
    for arm, weight in dict.fromkeys((row["arm"], row["weight"]) for row in rows):
        same = [row for row in rows if (row["arm"], row["weight"]) == (arm, weight)]
        settled = [row["steps"] if row["settled_step"] is None else row["settled_step"] for row in same]
        cells.append(
            [
                arm,
                f"{weight:g}",
                f"{same[0]['rate']:g}",
                Sample.of([row["test"] for row in same]).show(2),
                Sample.of([100 * row["macs_left"] for row in same]).show(1),
                Sample.of([100 * row["params_left"] for row in same]).show(1),
                Sample.of([row["unevenness"] for row in same]).show(3),
                Sample.of(settled).show(0),
                f"{statistics.fmean(100 * row['closed_at_start'] for row in same):.1f}",
            ]
        )
    header = ["arm", "λ", "gate rate", "test, %", "MACs left, %", "parameters left, %", "unevenness", "settled at step"]
    return markdown_grid([*header, "closed at the start, %"], cells)


def _comparisons(rows: Sequence[Row], network: str) -> list[str]:
    found = []
    for measure in MEASURES:
        cells = [cell for pair in PAIRS if (cell := _compared(rows, network, measure, *pair)) is not None]
        if cells:
            decides = "" if measure.decides else " (decides nothing)"
            found += [
                f"### {measure.title[0].upper()}{measure.title[1:]}{decides}",
                markdown_grid(["first", "second", "difference (95 %)", "seeds", "over", "verdict"], cells),
            ]
    return found


def _compared(rows: Sequence[Row], network: str, measure: Measure, left: str, right: str) -> list[str] | None:
    """Return one line of a table; None: one of the arms has not run."""
    curves = {arm: _curves(rows, arm, measure) for arm in (left, right)}
    if not all(curves.values()):
        return None
    values: dict[str, dict[int, float]] = {left: {}, right: {}}
    ranges = []
    for seed in sorted(curves[left].keys() & curves[right].keys()):
        both = overlap(curves[left][seed], curves[right][seed])
        if both is not None and both[1] - both[0] >= LEAST_RANGE:
            ranges.append(both)
            for arm in values:
                values[arm][seed] = mean_over(curves[arm][seed], *both)
    result = difference(values[left], values[right])
    if result is None:
        return [left, right, "–", "0", "–", "open (no common costs)"]
    shown = f"{result.mean:+.{measure.digits}f}"
    if result.low is not None and result.high is not None:
        shown += f" ({result.low:+.{measure.digits}f} to {result.high:+.{measure.digits}f})"
    over = " to ".join(f"{statistics.fmean(ends):.0%}" for ends in zip(*ranges, strict=True))
    claimed = measure.claimed(network, statistics.fmean(values[right].values()))
    inert = left == "dep" and _is_inert(rows)
    return [left, right, shown, str(len(ranges)), over, _verdict(result, len(ranges), claimed, inert)]


def _curves(rows: Sequence[Row], arm: str, measure: Measure) -> dict[int, dict[float, float]]:
    """Return the value over the cost for each seed with at least two costs."""
    curves: dict[int, dict[float, float]] = {}
    for row in rows:
        if row["arm"] == arm:
            curves.setdefault(row["seed"], {})[row[measure.cost]] = measure.value(row)
    return {seed: curve for seed, curve in curves.items() if len(curve) > 1}


def _is_inert(rows: Sequence[Row]) -> bool:
    """Tell whether no gate of Dep-L0's runs would differ with W = 0."""
    found = [row["dependency"] for row in rows if row["arm"] == "dep"]
    return all(told is None or told["gates_that_differ"] == 0 for told in found)


def _verdict(found: Difference, seeds: int, claimed: float, inert: bool) -> str:
    if inert:
        return "open (W·x decides no gate)"
    if seeds < LEAST_SEEDS or found.low is None or found.high is None:
        return f"open (fewer than {LEAST_SEEDS} seeds)"
    if found.low > 0:
        return "confirmed" if found.high >= claimed else "confirmed, smaller than claimed"
    return "refuted" if found.high < claimed else "too weak to tell"


def _choices_table(rows: Sequence[Row]) -> str:
    cells = [
        [
            NETWORKS[row["network"]].partition(",")[0],
            row["arm"],
            f"{row['rate']:g}",
            f"{row['weight']:g}",
            f"{row['held_out']:.1f}",
            f"{row['held_out_loss'] + row['weight'] * row['params_left']:.3f}",
            f"{100 * row['macs_left']:.1f}",
            f"{100 * row['params_left']:.1f}",
        ]
        for row in rows
    ]
    header = ["network", "arm", "gate rate", "λ", "held-out, %", "held-out loss + λ·parameters", "MACs left, %"]
    return markdown_grid([*header, "parameters left, %"], cells)
