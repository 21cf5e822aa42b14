"""How much does recovery from unlabelled images give back after a cut? Makes docs/results/one-shot/recovery.json.

    python benchmarks/unlabelled.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors --model resnet20

Every cell is one call of depl0.prune with 1,024 training images of a draw, an eighth of which is held back, and is then
measured on the test images. Nothing is chosen by them. Cells that OUT already has are not computed again.
"""

from __future__ import annotations

import itertools
import time

import torch
from common import network_options, provenance, read_rows, save_rows
from one_shot import CALIBRATION, accuracy, calibration, open_splits

import depl0
from depl0.app.models import build
from depl0.app.weights import load_weights

KEY = ("model", "groups", "budget", "recover", "augment", "seed")


def main() -> None:
    """Compute the cells that are missing, and write the JSON."""
    parser = network_options(__doc__, seeds=[0])
    parser.add_argument("--groups", default="inner")
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.25])
    parser.add_argument("--recover", nargs="+", default=["0", "auto"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "recovery.json"
    rows = read_rows(file)
    known = {tuple(row[key] for key in KEY) for row in rows}
    splits = open_splits(args.data)
    host = build(args.model)
    load_weights(host, args.weights)
    dense = accuracy(host, splits["test"])
    for seed, budget, recover in itertools.product(args.seeds, args.budgets, args.recover):
        cell = (args.model, args.groups, budget, recover, True, seed)
        if cell in known:
            continue
        batches = [images for images, _ in calibration(splits["rest"], seed)]
        steps = "auto" if recover == "auto" else int(recover)
        start = time.perf_counter()
        compact = depl0.prune(
            host, batches[0][:1], data=batches, budget=budget, groups=args.groups, recover=steps, augment=True
        )
        seconds = time.perf_counter() - start
        found = depl0.info(compact)
        row = dict(zip(KEY, cell, strict=True))
        row |= {"accuracy": accuracy(compact, splits["test"]), "dense_accuracy": dense, "macs_share": found.macs_left}
        row |= {"agreement": vars(found.agreement), "images": CALIBRATION, "seconds": round(seconds, 1)}
        rows.append(row | {"threads": args.threads} | provenance())
        save_rows(file, rows)
        print(f"{row['accuracy']:.2f} %", *cell, str(found.agreement), f"{seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
