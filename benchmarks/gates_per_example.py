"""What changes if every image of a batch has gates of its own, as in the code of the paper's authors?

    python benchmarks/gates_per_example.py OUT

Trains the small network on digits with a fixed λ on the authors' penalty, from the same seeds, once with gates drawn
for each batch (what depl0 does: gates multiply the affine parameters) and once with gates drawn for each image (gates
multiply the feature maps). Writes docs/results/gates-per-example: README.md and gates_per_example.json.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import mean_spread, options, provenance
from torch import Tensor

import depl0
from depl0.app.data import DataSettings, open_data
from depl0.app.models import build
from depl0.gated import GatedModel
from depl0.gates import sample_gates

EPOCHS, BATCH, WARM, SEEDS = 16, 64, 2, 3
GENERATORS = {"fc": {"preset": "reference", "lr": 2e-3}, "independent": {"preset": "reference", "lr": 3e-2}}
WEIGHT = 0.6
"""λ, on the share of the penalty that the dense network has"""


class PerExample:
    """Calls a gated network's host with gates of their own for each image, on its feature maps."""

    def __init__(self, gated: GatedModel) -> None:
        self._gated, self._gates = gated, torch.empty(0)
        for name, dim in gated.plan.sites:
            module, _, attribute = name.rpartition(".")
            if attribute == "weight":
                numbers = gated.plan.axes[(name, dim)]
                gated.host.get_submodule(module).register_forward_hook(
                    lambda _, __, output, numbers=numbers: output * self._gates[:, numbers, None, None]
                )

    def __call__(self, images: Tensor, log_alpha: Tensor) -> Tensor:
        """Draw gates for each image and call the host."""
        self._gates = sample_gates(log_alpha.expand(len(images), -1))
        scores: Tensor = self._gated.host(images)
        return scores


def per_batch(gated: GatedModel) -> Any:
    """Call a gated network as depl0 does."""
    return lambda images, log_alpha: gated.engine.call_with_gates(sample_gates(log_alpha), images)


def noise(gated: GatedModel, call: Any, images: Tensor, labels: Tensor, draws: int = 32) -> float:
    """Return the spread of the loss's gradient in log α over draws of gates, for one batch: median over gates."""
    log_alpha = gated.log_alpha().detach().requires_grad_()
    losses = (F.cross_entropy(call(images, log_alpha), labels) for _ in range(draws))
    gradients = torch.stack([torch.autograd.grad(loss, log_alpha)[0] for loss in losses])
    return float(gradients.std(0).median())


def train(generator: str, drawn: str, seed: int) -> dict[str, Any]:
    """Train once; return what is left of the network, its accuracy, and the noise of the gates' gradient."""
    torch.manual_seed(seed)
    settings = GENERATORS[generator]
    data = open_data("digits", DataSettings(batch_size=BATCH, seed=seed))
    rng = torch.Generator().manual_seed(seed)
    example = torch.zeros(1, *data.info.image_shape)
    gated = depl0.attach(
        build("small_cnn"), example, generator=generator, preset=settings["preset"], evaluation="paper", rng=rng
    ).train()
    call = per_batch(gated)
    if drawn == "image":
        call = PerExample(gated)
    sgd = torch.optim.SGD(gated.weight_parameters(), lr=0.05, momentum=0.9)
    adam = torch.optim.Adam(gated.gate_parameters(), lr=settings["lr"])
    spread = math.nan
    for epoch in range(EPOCHS):
        for images, labels in data.train.epoch(epoch):
            log_alpha = gated.log_alpha()
            loss = F.cross_entropy(call(images, log_alpha), labels) + WEIGHT * gated.engine.penalty_at(
                log_alpha, "chain"
            )
            loss.backward()
            for optimizer in (sgd, adam):
                optimizer.step()
                optimizer.zero_grad()
        if epoch + 1 == WARM:
            spread = noise(gated, call, images, labels)
    if drawn == "image":
        for module in gated.host.modules():
            module._forward_hooks.clear()
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
        "gradient_noise": spread,
    }


def page(result: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    lines = [
        "# Gates for each batch, or for each image",
        "",
        f"`small_cnn` on digits, {EPOCHS} epochs of batch {BATCH}, λ = {WEIGHT:g} on the share of the authors' "
        f"penalty, mean ± standard deviation over {SEEDS} seeds.",
        f"Noise: the spread of the loss's gradient in log α over draws of gates after {WARM} epochs (median);",
        "the networks differ by then, so it says nothing about the draws alone.",
        "",
        "| generator | gates drawn for each | accuracy | parameters left | gates open | noise |",
        "|---|---|---|---|---|---|",
    ]
    for generator, drawn in itertools.product(GENERATORS, ("batch", "image")):
        runs = [run for run in result["runs"] if (run["generator"], run["drawn"]) == (generator, drawn)]
        cells = [_mean(runs, key) for key in ("accuracy", "params_left", "gates_open")]
        spread = statistics.mean(run["gradient_noise"] for run in runs)
        lines.append(f"| {generator} | {drawn} | {' | '.join(cells)} | {spread:.2g} |")
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
