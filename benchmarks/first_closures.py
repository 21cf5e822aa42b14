"""How soon do gates close, before any data is seen: by the method, or by how it starts?

    python benchmarks/first_closures.py OUT

ResNet-56, the penalty alone (the paper's Σ|g|π), Adam at 1e-3 as published, no images. For each preset: L0-HC, Dep-L0,
Dep-L0 with W = 0, and L0-HC that starts from Dep-L0's first log α: the same initial closures without the dependency.
Writes OUT/closures.md and OUT/closures.json.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from common import options, provenance

import depl0
from depl0.app.models import build
from depl0.app.table import markdown_grid
from depl0.gated import GatedModel

SEEDS, LONGEST, CLOSED, RATE = 3, 6000, 0.3, 1e-3
ARMS = {
    "L0-HC": ("independent", False),
    "Dep-L0": ("fc", False),
    "Dep-L0, W = 0": ("bias", False),
    "L0-HC, the first log α of Dep-L0": ("independent", True),
}


def attach(generator: str, preset: str, seed: int) -> GatedModel:
    """Return ResNet-56 with gates on the channels inside its blocks and the paper's evaluation rule."""
    torch.manual_seed(seed)
    return depl0.attach(
        build("resnet56"),
        torch.randn(2, 3, 32, 32),
        groups="inner",
        generator=generator,
        preset=preset,
        evaluation="paper",
    )


def run(arm: str, preset: str, seed: int) -> dict[str, Any]:
    """Train with the penalty alone until enough gates are closed."""
    generator, same_start = ARMS[arm]
    gated = attach(generator, preset, seed)
    if same_start:
        gated.generator.start_from(attach("fc", preset, seed).log_alpha().detach())
    adam = torch.optim.Adam(gated.gate_parameters(), lr=RATE)
    at_start = closed(gated)
    steps = 0
    while steps < LONGEST and closed(gated) < CLOSED:
        adam.zero_grad()
        gated.penalty("groups").backward()
        adam.step()
        steps += 1
    reached = closed(gated) >= CLOSED
    return {
        "arm": arm,
        "preset": preset,
        "seed": seed,
        "closed_at_start": at_start,
        "steps": steps if reached else None,
    }


@torch.no_grad()
def closed(gated: GatedModel) -> float:
    """Return the share of the gates that the evaluation rule closes."""
    return float((gated.evaluation_gates() == 0).float().mean())


def row(runs: list[dict[str, Any]]) -> list[str]:
    """Return preset, arm, initial closures and steps, mean ± spread."""
    steps = [run["steps"] for run in runs]
    start = [100 * run["closed_at_start"] for run in runs]
    late = f"more than {LONGEST:,}"
    shown = late if None in steps else f"{statistics.fmean(steps):,.0f} ± {statistics.stdev(steps):,.0f}"
    at_start = f"{statistics.fmean(start):.1f} ± {statistics.stdev(start):.1f} %"
    return [runs[0]["preset"], runs[0]["arm"], at_start, shown]


def main() -> None:
    """Run every arm with every preset, and write both files."""
    out: Path = options(__doc__).parse_args().out
    runs, rows = [], []
    for preset in ("paper", "reference"):
        for arm in ARMS:
            found = [run(arm, preset, seed) for seed in range(SEEDS)]
            runs += found
            rows.append(row(found))
            print(*rows[-1], sep="  ", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    header = ["preset", "gates", "closed at the start", f"steps until {CLOSED:.0%} are closed"]
    (out / "closures.md").write_text(markdown_grid(header, rows) + "\n")
    (out / "closures.json").write_text(json.dumps({**provenance(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
