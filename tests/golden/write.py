"""Write the golden folders of a format version: ``python -m tests.golden.write``. Folders that exist are never changed.

A new version of the format gets new folders beside the old ones; the old ones must be readable for ever.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

import depl0
from tests.networks.golden import TinyDigits, TinyStream
from tests.support.compare import call, liven, random_gates

HERE = Path(__file__).parent


def gated_digits(closed: tuple[str, ...], build: type[nn.Module] = TinyDigits) -> depl0.GatedModel:
    """Return a tiny network with some gates closed: a third at random, and these groups as a whole."""
    torch.manual_seed(0)
    images = torch.randn(1, 1, 8, 8)
    gated = depl0.attach(liven(build(), images), images).eval()
    gates = random_gates(gated.plan.num_gates, 3)
    for group in gated.plan.groups:
        if group.name in closed:
            gates[group.gates] = 0
    gated.fix_gates(gates)
    return gated


def main() -> None:
    for name, closed, build in (
        ("v1/blocks", ("first.conv1",), TinyDigits),
        ("v1/norms", (), TinyStream),
    ):
        folder = HERE / name
        if folder.exists():
            print(f"{folder} is there already")
            continue
        compact = gated_digits(closed, build).extract(remove_blocks=bool(closed)).eval()
        depl0.save(compact, folder)
        images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        save_file({"images": images, "scores": call(compact, images)}, folder / "expected.safetensors")
        print(f"{folder}: {depl0.cost(compact, images[:1])}")


if __name__ == "__main__":
    main()
