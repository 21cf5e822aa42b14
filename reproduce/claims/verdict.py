"""Judge the experiment of run.py by benchmarks/results/verdict/RULES.md, and write its page and forest plot.

python reproduce/claims/verdict.py benchmarks/results/verdict/results.jsonl benchmarks/results/verdict
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from intervals import Curve, Difference, common_costs, is_near, mean_at, of_pairs
from run import BETWEEN, CHOICE_SEED, EPOCHS, LONG_EPOCHS, PUBLISHED_RATE, TARGETS, Experiment

from depl0.app.reports.canvas import BLUE, GREY, INK, new_figure, style
from depl0.app.table import markdown_grid

FIXED, LEAST_SEEDS, CLAIMED = (0.55, 0.4, 0.3), 3, 0.3
MACS, PARAMS = "macs_left", "params_left"
FIGURES = {"test": "test accuracy, points", "settled_step": "step at which gates settle", "slope": "slope, % per layer"}
"""compared figures; the slope is that of the fraction of closed gates over the layers"""
PUBLISHED = f"dep, rate {PUBLISHED_RATE:g}"
NAMES = {"dep": "Dep-L0", "l0-hc": "L0-HC", PUBLISHED: f"Dep-L0, rate {PUBLISHED_RATE:g}", "w0": "W = 0"}
NAMES |= {"dep-image": "Dep-L0, gates per image", "l0-hc-image": "L0-HC, gates per image"}

Rows = Sequence[Mapping[str, Any]]
Arms = Mapping[str, Rows]


# -- comparisons -------------------------------------------------------------------------------------------------------


def curves(rows: Rows, figure: str, cost: str = MACS) -> dict[int, Curve]:
    """Return a figure over the cost for each seed; runs of one seed and cost count by their mean."""
    found: dict[int, dict[float, list[float]]] = {}
    for row in rows:
        if row.get(figure) is not None and row.get(cost) is not None:
            found.setdefault(row["seed"], {}).setdefault(row[cost], []).append(row[figure])
    return {seed: {at: statistics.fmean(values) for at, values in curve.items()} for seed, curve in found.items()}


def at_fixed(left: Rows, right: Rows, at: float, figure: str = "test") -> Difference | None:
    """Return the paired difference at one fixed cost, over the seeds in which both can be read there."""
    ours, theirs = curves(left, figure), curves(right, figure)
    seeds = [
        seed for seed in sorted(ours.keys() & theirs.keys()) if is_near(ours[seed], at) and is_near(theirs[seed], at)
    ]
    return of_pairs([mean_at(ours[seed], [at]) - mean_at(theirs[seed], [at]) for seed in seeds]) if seeds else None


def over_common(left: Rows, right: Rows, cost: str, figure: str = "test") -> Difference | None:
    """Return the paired difference of means over the costs at which both can be read."""
    ours, theirs = curves(left, figure, cost), curves(right, figure, cost)
    found = {seed: common_costs(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())}
    pairs = [mean_at(ours[seed], costs) - mean_at(theirs[seed], costs) for seed, costs in found.items() if costs]
    return of_pairs(pairs) if pairs else None


def control_against(control: Rows, arm: Rows, figure: str = "test") -> Difference | None:
    """Return a control's single run of a seed minus the other's interpolated line at the control's own MACs."""
    line = curves(arm, figure)
    pairs = [
        row[figure] - mean_at(line[row["seed"]], [row[MACS]])
        for row in control
        if row["seed"] in line and is_near(line[row["seed"]], row[MACS])
    ]
    return of_pairs(pairs) if pairs else None


def verdict(found: Difference | None) -> str:
    """Return the verdict on a difference in accuracy, valid only for its setting.

    >>> verdict(Difference(1.0, 0.7, 1.3, 5)), verdict(Difference(0.0, -0.2, 0.2, 5))
    ('better', 'no gain of the claimed size')
    >>> verdict(Difference(0.5, -0.1, 1.1, 5)), verdict(Difference(9.0, 8.0, 10.0, 2))
    ('cannot tell', 'open')
    """
    if found is None or found.n < LEAST_SEEDS or found.low is None or found.high is None:
        return "open"
    if found.low > 0:
        return "better"
    return "worse" if found.high < 0 else "no gain of the claimed size" if found.high < CLAIMED else "cannot tell"


def arms_of(rows: Rows, chosen: Mapping[str, Sequence[tuple[float, float]]], epochs: int) -> dict[str, Rows]:
    """Return the runs that are compared, by arm; Dep-L0 at the published rate is an arm of its own."""
    counted = [row for row in rows if row["seed"] != CHOICE_SEED and row["epochs"] == epochs]
    found: dict[str, Rows] = {}
    for arm in dict.fromkeys(row["arm"] for row in counted):
        own = [row for row in counted if row["arm"] == arm]
        found[arm] = [row for row in own if arm not in chosen or (row["rate"], row["weight"]) in chosen[arm]]
    if epochs == EPOCHS and any(rate != PUBLISHED_RATE for rate, _ in chosen["dep"]):
        found[PUBLISHED] = [row for row in counted if row["arm"] == "dep" and row["rate"] == PUBLISHED_RATE]
    return {arm: own for arm, own in found.items() if own}


def with_slope(row: dict[str, Any]) -> dict[str, Any]:
    """Add the slope of the fraction of closed gates over the layers, in % per layer."""
    ratios = row.get("prune_ratios")
    return row if not ratios else row | {"slope": 100 * float(np.polyfit(range(len(ratios)), ratios, 1)[0])}


def comparisons(arms: Arms, left: str, right: str) -> list[tuple[str, str, Difference | None]]:
    """Return (figure, cost, difference) for a pair of arms with several λ each."""
    rows = arms[left], arms[right]
    found = [("test", f"{100 * at:g} % of the MACs", at_fixed(*rows, at)) for at in FIXED]
    found += [
        ("test", "equal MACs", over_common(*rows, MACS)),
        ("test", "equal parameters", over_common(*rows, PARAMS)),
    ]
    others = itertools.product([figure for figure in FIGURES if figure != "test"], FIXED)
    return [*found, *((name, f"{100 * at:g} % of the MACs", at_fixed(*rows, at, name)) for name, at in others)]


# -- page --------------------------------------------------------------------------------------------------------------


def comparison_table(arms: Arms, pairs: Sequence[tuple[str, str]]) -> str:
    """Return all comparisons of pairs of arms."""
    cells = []
    for left, right in pairs:
        for figure, where, found in comparisons(arms, left, right):
            judged = verdict(found) if figure == "test" else ""
            digits = 0 if figure == "settled_step" else 2
            shown, n = ("–", "0") if found is None else (found.show(digits), str(found.n))
            cells.append(
                [f"{NAMES.get(left, left)} − {NAMES.get(right, right)}", FIGURES[figure], where, shown, n, judged]
            )
    head = ["compared", "figure", "at", "difference (95 % interval)", "seeds", "verdict in this setting"]
    return markdown_grid(head, cells, is_number=[False, False, False, True, True, False])


def run_table(rows: Rows) -> str:
    """Return mean ± sample standard deviation over seeds for every arm, rate, λ and length."""
    key = ("epochs", "arm", "rate", "weight")
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in key), []).append(row)
    cells = []
    for (epochs, arm, rate, weight), same in sorted(groups.items()):
        figures = [
            (row["test"], 100 * row[MACS], 100 * row[PARAMS], row["settled_step"], 100 * row["undecided"])
            for row in same
        ]
        seeds = ", ".join(str(row["seed"]) for row in same)
        cells.append([f"{epochs}", arm, f"{rate:g}", f"{weight:g}", seeds, *map(spread, zip(*figures, strict=True))])
    head = ["epochs", "arm", "gate rate", "λ", "seeds", "test accuracy, %", "MACs left, %", "parameters left, %"]
    return markdown_grid([*head, "settled at step", "undecided gates, %"], cells)


def spread(values: Sequence[float | None]) -> str:
    """Return mean ± sample standard deviation."""
    found = [value for value in values if value is not None]
    deviation = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.1f}{deviation}" if found else "–"


def choice_table(rows: Rows, chosen: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return the runs on which the choices of rates and λ are based, and the choices."""
    made = [
        f"- {NAMES.get(arm, arm)}: "
        + ", ".join(f"{t:.0%} → rate {r:g}, λ {w:g}" for t, (r, w) in zip(TARGETS, c, strict=False))
        for arm, c in chosen.items()
        if len(c) == len(TARGETS)
    ]
    cells = [
        [
            *(row["arm"], f"{row['rate']:g}", f"{row['weight']:g}", f"{row['held_out_loss']:.3f}"),
            *(f"{row['held_out']:.1f}", f"{100 * row[MACS]:.1f}", f"{100 * row[PARAMS]:.1f}"),
        ]
        for row in rows
        if row["seed"] == CHOICE_SEED
    ]
    head = ["arm", "gate rate", "λ", "held-out loss", "held-out accuracy, %", "MACs left, %", "parameters left, %"]
    return "\n".join(made) + "\n\n" + markdown_grid(head, cells)


def forest(found: Mapping[str, Difference], file: Path) -> None:
    """Draw differences in accuracy with their intervals, one line each."""
    with style():
        figure = new_figure(8.5, 1.2 + 0.36 * len(found))
        axes = figure.subplots()
        for place, each in enumerate(found.values()):
            is_open = each.n < LEAST_SEEDS or each.low is None or each.high is None  # its interval would hide the rest
            low, high = (each.mean, each.mean) if is_open else (each.low, each.high)
            axes.plot([low, high], [place, place], color=BLUE, linewidth=2)
            axes.plot([each.mean], [place], "o", color=GREY if is_open else INK, markersize=5)
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.axvline(CLAIMED, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(found)), [f"{name} (n = {each.n})" for name, each in found.items()])
        axes.invert_yaxis()
        axes.set_xlabel(f"difference in test accuracy, points (dashed: the claimed +{CLAIMED:g})")
        figure.savefig(file, metadata={"Date": None})


def write(rows: Rows, out: Path, plot: Path) -> str:
    """Write README.md and the forest plot; return the page."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        experiment = Experiment(Path(folder), None)
        chosen: dict[str, list[tuple[float, float]]] = {}
        for arm, place in itertools.product(("dep", "l0-hc"), range(len(TARGETS))):
            try:
                chosen.setdefault(arm, []).append(experiment.choice(arm, place))
            except KeyError:
                break
        done = all(len(each) == len(TARGETS) for each in (chosen.get("dep", ()), chosen.get("l0-hc", ())))
        further = [(arm, experiment.choice_between(arm, cost)) for arm in chosen for cost in BETWEEN] if done else []
    settings = {arm: [*own, *(each for other, each in further if other == arm)] for arm, own in chosen.items()}
    parts, plotted = [], {}
    for epochs in (EPOCHS, LONG_EPOCHS) if done else ():
        arms = arms_of(rows, settings, epochs)
        pairs = [(left, "l0-hc") for left in ("dep", PUBLISHED) if left in arms and "l0-hc" in arms]
        if pairs:
            parts += [f"## {epochs} epochs", comparison_table(arms, pairs)]
        for left, right in pairs:
            for figure, where, found in comparisons(arms, left, right):
                if figure == "test" and found is not None:
                    plotted[f"{NAMES[left]}, {epochs} epochs, {where}"] = found
        for control in [arm for arm in arms if arm not in ("dep", "l0-hc", PUBLISHED) and "dep" in arms]:
            base = control.removesuffix("-image") if control.endswith("-image") else "dep"
            found = control_against(arms[control], arms.get(base, ()))
            if found is not None:
                name = f"{NAMES.get(control, control)} − {NAMES[base]}"
                parts.append(f"{name} at the MACs of the first: {found} points, n = {found.n}: {verdict(found)}.")
                plotted[f"{name}, {epochs} epochs"] = found
    if plotted:
        forest(plotted, plot)
        parts.insert(0, f"![Differences in test accuracy, with 95 % intervals]({os.path.relpath(plot, out)})")
    note = out / "note.md"
    compared = [row for row in rows if row["seed"] != CHOICE_SEED]
    versions = sorted(
        {f"commit {str(row['made_with'].get('commit'))[:12]}, torch {row['made_with'].get('torch')}" for row in rows}
    )
    page = [
        "# The verdict on the paper",
        f"Written by `reproduce/claims/verdict.py` from {len(rows)} runs, {len(compared)} of which are compared; the "
        "others chose gate rates and λ. [RULES.md](RULES.md) was written before the first run; every figure of every "
        "run is in [results.jsonl](results.jsonl).",
        *([note.read_text(encoding="utf-8").strip()] if note.exists() else []),
        *(["The choices are not complete yet, so nothing is compared."] if not done else parts),
        "## Runs",
        *([run_table(compared)] if compared else ["None yet."]),
        "## Choices",
        choice_table(rows, chosen),
        f"Made with {'; '.join(versions)}.",
    ]
    text = "\n\n".join(page) + "\n"
    (out / "README.md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    """Evaluate a file of runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="results.jsonl of run.py")
    parser.add_argument("out", type=Path, help="folder of the page")
    parser.add_argument("--figure", type=Path, default=Path("docs/images/verdict.svg"), help="file of the forest plot")
    args = parser.parse_args()
    rows = [with_slope(json.loads(line)) for line in args.runs.read_text(encoding="utf-8").splitlines()]
    text = write(rows, args.out, args.figure)
    if args.runs.resolve() != (args.out / "results.jsonl").resolve():
        shutil.copyfile(args.runs, args.out / "results.jsonl")
    print(text)


if __name__ == "__main__":
    main()
