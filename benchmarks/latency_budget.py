"""Does a latency budget hold? Cut networks to a fraction of their latency, and measure the results.

    python benchmarks/latency_budget.py [--budget 0.6] [--models resnet50,mobilenet_v2] [--json FILE]

Nothing is trained: gates are ordered by the norms of their filters. Eager PyTorch, batch 1, one thread, on the
CPU. MobileNetV2 needs torchvision.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from untrained import attach_untrained, cut_untrained

import depl0
from depl0.app import models
from depl0.latency import machine, ratio, summarise, time_networks

sys.path.insert(0, str(Path(__file__).parents[1]))


def build(name: str) -> nn.Module:
    """Return a network by its name: built in, or of torchvision."""
    if name in models.names():
        return models.build(name)
    from depl0._util.optional import import_torchvision

    model: nn.Module = import_torchvision().models.get_model(name, weights=None)
    return model


def measure(name: str, budget: float, round_to: int, size: int) -> dict[str, Any]:
    """Cut one network to the budget; then measure it again, independently of the measurements of the cut."""
    torch.manual_seed(0)
    dense, example = build(name).eval(), torch.randn(1, 3, size, size)
    gated = attach_untrained(dense, example)
    compact, found = cut_untrained(gated, budget, "latency", round_to)
    assert found is not None
    networks = {"dense": dense, "compact": compact}
    times = time_networks(networks, [example], repeats=40, seconds=40.0)
    medians = {key: summarise(values) for key, values in times.items()}
    share = ratio(times["compact"], times["dense"])
    macs = {key: depl0.cost(network, example).macs for key, network in networks.items()}
    return {
        "network": name,
        "image_size": size,
        "budget": budget,
        "round_to": round_to,
        "attempts": found["attempts"],
        "measured_when_frozen": found["measured"],
        "measured": share,
        "measured_of_medians": medians["compact"].median / medians["dense"].median,
        "dense_ms": 1000 * medians["dense"].median,
        "compact_ms": 1000 * medians["compact"].median,
        "off_budget": share / budget - 1,
        "macs_left": macs["compact"] / macs["dense"],
        **machine(torch.device("cpu")),
    }


def main() -> None:
    """Print one line per network; with --json, write everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet50,mobilenet_v2")
    parser.add_argument("--budget", type=float, default=0.6)
    parser.add_argument("--round-to", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name in options.models.split(","):
        found = measure(name, options.budget, options.round_to, options.image_size)
        results.append(found)
        print(
            f"{name}: budget {found['budget']:.2f}, tables said {found['predicted']:.3f}, "
            f"measured {found['measured']:.3f} "
            f"({found['off_budget']:+.1%}), {len(found['attempts'])} tries, MACs left {found['macs_left']:.3f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
