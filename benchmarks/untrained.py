"""Cut an untrained network to half of its MACs, and time it beside the original one.

    python benchmarks/untrained.py resnet50 [--budget 0.5] [--multiples 1 8] [--json]

Channels are ordered by the norms of their filters within every group, so that all groups lose the same fraction.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor, nn

from depl0.app.cli.latency_run import latency_table, measure, networks_of_model
from depl0.app.methods.base import rank_within_groups
from depl0.app.methods.weights import sum_over_filters
from depl0.gated import GatedModel, attach
from depl0.gates.threshold import BudgetKind
from depl0.select.gates import check_budget, select_gates
from depl0.select.latency import select_within_latency


def rank_scores(gated: GatedModel) -> Tensor:
    """Return scores from 0 to 1: the rank of each gate's filter norms within its group."""
    return rank_within_groups(gated.plan, sum_over_filters(gated, lambda rows: rows.square().sum(1))).cpu()


def attach_untrained(model: nn.Module, example: Tensor, groups: str = "all") -> GatedModel:
    """Attach gates with rank scores to a network."""
    gated = attach(model, example, generator="independent", groups=groups)
    gated.generator.start_from(rank_scores(gated) + 6.0)  # all open, so that kept channels keep their weights
    return gated


def cut_untrained(
    gated: GatedModel, budget: float, of: BudgetKind = "macs", round_to: int = 1
) -> tuple[nn.Module, dict[str, Any] | None]:
    """Return the compact network that meets a budget; for latency, also the record of the latency search."""
    gated.free_gates()
    network, config = gated.snapshot(), gated.config.changed(budget=budget, of=of, round_to=round_to)
    check_budget(network, config)
    found, record = select_within_latency(network, config) if of == "latency" else (select_gates(network, config), None)
    return network.extract(found.gates, config.remove_blocks), record


def main() -> None:
    """Print sizes and times of the original network and of the ones that are cut."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--multiples", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--backends", nargs="+", default=["eager", "compile", "onnxruntime"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    networks, shape = networks_of_model(args.model, 0, 3, 10)
    gated = attach_untrained(networks["dense"], torch.randn(1, *shape))
    for number in args.multiples:
        name = "compact" if number == 1 else f"compact, multiples of {number}"
        networks[name], _ = cut_untrained(gated, args.budget, "macs", number)
    result = measure(args.model, networks, shape, args.backends, args.batches, "cpu", args.seconds)
    print(json.dumps(result, indent=2) if args.json else latency_table(result))


if __name__ == "__main__":
    main()
