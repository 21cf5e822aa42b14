"""Measure the cost of checkpoints: seconds per save of a search, and their fraction of the time by default.

python benchmarks/checkpoint_cost.py [MODEL …]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import depl0
from depl0.app.models.spec import factory
from depl0.app.recipes.recipe import RunSection
from depl0.app.runs.checkpoint import save_checkpoint

SIDES = {"resnet50": 224}
REPEATS = 5


def main(names: list[str]) -> None:
    """Print a line for each network."""
    interval = 60 * RunSection().checkpoint_minutes
    for name in names:
        side = SIDES.get(name, 32)
        host = factory(name, 10, 3, side)()
        gated = depl0.attach(host, torch.randn(1, 3, side, side))
        optimizers = [
            torch.optim.SGD(gated.weight_parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(gated.gate_parameters()),
        ]
        for parameter in gated.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for optimizer in optimizers:
            optimizer.step()
        state = {"model": gated.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
        with tempfile.TemporaryDirectory(dir=".") as folder:
            seconds, of_processor = [], []
            for step in range(REPEATS):
                start, start_of_processor = time.perf_counter(), time.process_time()
                path = save_checkpoint(Path(folder), step, state, keep=2)
                seconds.append(time.perf_counter() - start)
                of_processor.append(time.process_time() - start_of_processor)
            size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
        median, busy = statistics.median(seconds), statistics.median(of_processor)
        print(
            f"{name}: {size:.1f} MB; median of {REPEATS} saves: {median:.2f} s, {busy:.2f} s of them of the processor; "
            f"{median / interval:.2%} and {busy / interval:.2%} of the time at one save in {interval:g} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or ["resnet56", "resnet50"])
