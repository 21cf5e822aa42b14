"""Which gates does the paper's generator close before any training? The fraction of closed gates of every layer.

python reproduce/claims/first_gates.py            # VGG16 and ResNet-56, c = 10 and c = log 100, 5 seeds
python reproduce/claims/first_gates.py --smoke    # one seed
"""

from __future__ import annotations

import argparse
import statistics

import torch

from depl0.app.table import markdown_grid
from depl0.gates.generators import make_generator
from depl0.gates.hard_concrete import closing_log_alpha

SIZES = {
    "VGG16": (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512),
    "ResNet-56": (16, *[16] * 9, *[32] * 9, *[64] * 9),
}


def closed(network: str, preset: str, direction: str, seed: int) -> list[float]:
    """Return the fraction of gates of each layer that the paper's rule closes at the start."""
    sizes = SIZES[network]
    generator = make_generator("fc", sizes, direction, preset, rng=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return [float((part <= closing_log_alpha("paper")).float().mean()) for part in generator().split(list(sizes))]


def main() -> None:
    """Print a row for each network, preset and direction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    rows = []
    for network in SIZES:
        for preset, direction in ((p, d) for p in ("paper", "reference") for d in ("forward", "backward")):
            layers = [closed(network, preset, direction, seed) for seed in range(1 if args.smoke else args.seeds)]
            means = [100 * statistics.fmean(column) for column in zip(*layers, strict=True)]
            first = 0 if direction == "forward" else -1
            others = means[1:] if direction == "forward" else means[:-1]
            rows.append([network, preset, direction, f"{means[first]:.1f}", f"{statistics.fmean(others):.1f}"])
            rows[-1] += [f"{min(others):.1f} to {max(others):.1f}", f"{statistics.pstdev(others):.1f}"]
    head = ["network", "preset", "direction", "first layer, %", "mean of the others, %", "range", "standard deviation"]
    print(markdown_grid(head, rows, is_number=[False, False, False, True, True, True, True]))


if __name__ == "__main__":
    main()
