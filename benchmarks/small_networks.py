"""From which network size on does pruning pay off on a CPU? Makes benchmarks/results/rounding/small_networks.json.

    python benchmarks/small_networks.py OUT.json

Small networks are cut to half of their MACs, untrained (filter norms, the same fraction of every group), in whole
channels and in multiples of 8, and timed alternately with the dense network in PyTorch, with one thread.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from common import options
from untrained import attach_untrained, cut_untrained

import depl0
from depl0.app.models.spec import factory
from depl0.latency import machine, speedup, summarise, time_networks

NETWORKS = {"small_cnn": (1, 8), "lenet5": (1, 28), "resnet20": (3, 32), "resnet56": (3, 32), "vgg16": (3, 32)}


def measure(name: str, batches: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each batch size and multiple."""
    channels, size = NETWORKS[name]
    torch.manual_seed(0)
    dense = factory(name, 10, channels, size)().eval()
    gated = attach_untrained(dense, torch.randn(1, channels, size, size))
    networks = {"dense": dense, **{str(n): cut_untrained(gated, 0.5, "macs", n)[0] for n in (1, 8)}}
    rows = []
    for batch in batches:
        times = time_networks(networks, [torch.randn(batch, channels, size, size)], rounds, seconds=1e9)
        for multiple in ("1", "8"):
            found = speedup(times["dense"], times[multiple])
            rows.append(
                {
                    "network": name,
                    "macs": gated.dense_cost.macs,
                    "macs_left": depl0.info(networks[multiple]).macs_left,
                    "round_to": int(multiple),
                    "batch": batch,
                    "dense_ms": 1000 * summarise(times["dense"]).median,
                    "speedup": found.ratio,
                    "low": found.low,
                    "high": found.high,
                    "rounds": len(times["dense"]),
                }
            )
    return rows


def main() -> None:
    """Measure, and write the JSON."""
    parser = options(__doc__)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine(torch.device("cpu")), "rows": []}
    for name in args.networks:
        result["rows"] += measure(name, args.batches, args.rounds)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        for row in result["rows"][-2 * len(args.batches) :]:
            print(row, flush=True)


if __name__ == "__main__":
    main()
