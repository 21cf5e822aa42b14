"""Write the golden folders of a format version: ``python -m tests.golden.write``. Folders that exist are never changed.

A new version of the format gets new folders beside the old ones; the old ones must be read for ever.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

import depl0
from depl0.files import VERSION
from tests.analysis.helpers import call, liven, random_gates
from tests.golden.network import TinyDigits

HERE = Path(__file__).parent


def gated_digits(closed: tuple[str, ...]) -> depl0.GatedModel:
    """Return the tiny network with some gates closed: a third at random, and these groups as a whole."""
    torch.manual_seed(0)
    images = torch.randn(1, 1, 8, 8)
    gated = depl0.attach(liven(TinyDigits(), images), images).eval()
    gates = random_gates(gated.plan.num_gates, 3)
    for group in gated.plan.groups:
        if group.name in closed:
            gates[group.gates] = 0
    gated.fix_gates(gates)
    return gated


def main() -> None:
    for name, closed in (("channels", ()), ("blocks", ("first.conv1",))):
        folder = HERE / f"v{VERSION}" / name
        if folder.exists():
            print(f"{folder} is there already")
            continue
        compact = gated_digits(closed).extract(remove_blocks=bool(closed)).eval()
        depl0.save(compact, folder)
        images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        save_file({"images": images, "scores": call(compact, images)}, folder / "expected.safetensors")
        print(f"{folder}: {depl0.cost(compact, images[:1])}")


if __name__ == "__main__":
    main()
