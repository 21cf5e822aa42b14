"""How long do many budgets from one look take? Makes docs/results/one-shot/every_budget.json.

    python benchmarks/every_budget.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors --model resnet20

One call of depl0.prune makes networks from 10 to 90 % of the MACs, each with its certificate, without recovery. Some of
them are then made again alone and compared, value by value. Processor seconds of all threads are what the call would
take on one free core.
"""

from __future__ import annotations

import json
import time

import torch
from common import network_options, provenance
from one_shot import CALIBRATION, accuracy, calibration, open_splits

import depl0
from depl0.app.models.spec import build_model
from depl0.app.weights import load_weights


def main() -> None:
    """Make the networks, compare some, and write the JSON."""
    parser = network_options(__doc__, seeds=[0])
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--alone", nargs="+", type=int, default=[0, 10], help="networks to make again, by their place")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    splits = open_splits(args.data)
    dense = build_model(args.model, 10, 3, 32)
    load_weights(dense, args.weights)
    batches = [images for images, _ in calibration(splits["rest"], args.seeds[0])]
    budgets = [round(0.1 + 0.8 * place / (args.number - 1), 4) for place in range(args.number)]

    def prune(budget: float | list[float]) -> list[torch.nn.Module]:
        several = budget if isinstance(budget, list) else [budget]
        return depl0.prune(dense, batches[0][:1], data=batches, budget=several, groups="inner", recover=None)

    start, used = time.perf_counter(), time.process_time()
    networks = prune(budgets)
    found = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used}
    for place in args.alone:
        state, again = (network.state_dict() for network in (networks[place], *prune(budgets[place])))
        assert state.keys() == again.keys() and all(torch.equal(state[name], again[name]) for name in state)
    rows = [
        {
            "budget": budget,
            "macs_share": depl0.info(network).macs_left,
            "certified_error": depl0.info(network).certificate.max_error,
            "accuracy": accuracy(network, splits["test"]),
            "equal_answers": agreement.equal if (agreement := depl0.info(network).agreement) else None,
        }
        for budget, network in zip(budgets, networks, strict=True)
    ]
    result = {"model": args.model, "images": CALIBRATION, "seed": args.seeds[0], "threads": args.threads, **found}
    result |= {"compared_alone": [budgets[place] for place in args.alone], "networks": rows, **provenance()}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "every_budget.json").write_text(json.dumps(result, indent=2) + "\n")
    print({name: value for name, value in result.items() if name != "networks"})


if __name__ == "__main__":
    main()
