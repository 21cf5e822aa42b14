"""Compare gates sampled for each image, as in the code of the paper's authors, with gates sampled for each batch.

    python benchmarks/gates_per_example.py OUT

Trains the small network on digits with a fixed λ on the authors' penalty, from the same seeds, once with gates sampled
for each batch (depl0's default: gates multiply the affine parameters) and once with gates sampled for each image
(``draw="image"``: gates multiply the feature maps). Writes README.md and gates_per_example.json of
benchmarks/results/gates-per-example.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import mean_spread, options, provenance

import depl0
from depl0.app.data import DataSettings, open_data
from depl0.app.models import build

EPOCHS, BATCH, SEEDS = 16, 64, 3
GENERATORS = {"fc": {"preset": "reference", "lr": 2e-3}, "independent": {"preset": "reference", "lr": 3e-2}}
WEIGHT = 0.6
"""λ, on the share of the penalty that the dense network has"""


def train(generator: str, drawn: str, seed: int) -> dict[str, Any]:
    """Train once; return the accuracy and the remaining cost of the network."""
    torch.manual_seed(seed)
    settings = GENERATORS[generator]
    data = open_data("digits", DataSettings(batch_size=BATCH, seed=seed))
    rng = torch.Generator().manual_seed(seed)
    example = torch.zeros(1, *data.info.image_shape)
    gated = depl0.attach(
        build("small_cnn"),
        example,
        generator=generator,
        preset=settings["preset"],
        evaluation="paper",
        draw=drawn,
        rng=rng,
    ).train()
    sgd = torch.optim.SGD(gated.weight_parameters(), lr=0.05, momentum=0.9)
    adam = torch.optim.Adam(gated.gate_parameters(), lr=settings["lr"])
    for epoch in range(EPOCHS):
        for images, labels in data.train.epoch(epoch):
            loss = F.cross_entropy(gated(images), labels) + WEIGHT * gated.penalty("chain")
            loss.backward()
            for optimizer in (sgd, adam):
                optimizer.step()
                optimizer.zero_grad()
    gated.eval()
    with torch.no_grad():
        right = [(gated(images).argmax(1) == labels).float() for images, labels in data.test.epoch(0)]
    kept = gated.kept_cost()
    return {
        "generator": generator,
        "drawn": drawn,
        "seed": seed,
        "accuracy": float(torch.cat(right).mean()),
        "params_left": kept.params / gated.dense_cost.params,
        "gates_open": float((gated.evaluation_gates() > 0).float().mean()),
    }


def page(result: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    lines = [
        "# Gates for each batch, or for each image",
        "",
        f"`small_cnn` on digits, {EPOCHS} epochs of batch {BATCH}, λ = {WEIGHT:g} on the share of the authors' "
        f"penalty, mean ± standard deviation over {SEEDS} seeds.",
        "",
        "| generator | gates drawn for each | accuracy | parameters left | gates open |",
        "|---|---|---|---|---|",
    ]
    for generator, drawn in itertools.product(GENERATORS, ("batch", "image")):
        runs = [run for run in result["runs"] if (run["generator"], run["drawn"]) == (generator, drawn)]
        cells = [_mean(runs, key) for key in ("accuracy", "params_left", "gates_open")]
        lines.append(f"| {generator} | {drawn} | {' | '.join(cells)} |")
    made = result["made_with"]
    written = f"Written by `benchmarks/gates_per_example.py` with torch {made['torch']}, commit {made['commit']}."
    lines += ["", written, ""]
    return "\n".join(lines)


def _mean(runs: list[dict[str, Any]], key: str) -> str:
    return f"{mean_spread([100 * run[key] for run in runs], 1)} %"


def main() -> None:
    """Train everything and write the page."""
    out: Path = options(__doc__).parse_args().out
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed, generator, drawn in itertools.product(range(SEEDS), GENERATORS, ("batch", "image")):
        runs.append(train(generator, drawn, seed))
        print(runs[-1], flush=True)
    result = {"runs": runs, "made_with": provenance()}
    (out / "gates_per_example.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (out / "README.md").write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
