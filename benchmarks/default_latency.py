"""Is a network that ``depl0.prune`` halves with its defaults faster in ONNX Runtime? Makes default_latency.{json,md}.

    python benchmarks/default_latency.py OUT [--networks resnet50 …] [--seconds 20]    # missing networks, then the page

Every network is pruned to half of the MACs by ``depl0.prune(model, example, data=images, recover=None)``. Widths depend
little on the images, so 64 images of noise are enough. The networks of torchvision are not trained: only their speed
means something. The original and the pruned file take turns on one thread, with a batch of 1, in an order that changes
from round to round.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from common import options, provenance, read_rows, save_rows
from torch import Tensor, nn

import depl0
from depl0._util.optional import import_torchvision
from depl0.app.models.spec import factory
from depl0.export.onnx import export_onnx
from depl0.latency import interleave, processor_name, session_call, speedup, summarise

IMAGES = 64
SMALL = {"resnet20": 32, "resnet56": 32}
"""Networks of depl0 for CIFAR-10, and the size of their images; all others are torchvision's, or EfficientNet-Lite0."""
CALIBRATION_SIZE = 96
NETWORKS = ("resnet20", "resnet56", "efficientnet_lite0", "mobilenet_v2", "mobilenet_v3_small", "resnet18")


def make(name: str) -> tuple[nn.Module, int]:
    """Return a network in evaluation mode, and the size of its images."""
    torch.manual_seed(0)
    if name in SMALL:
        return factory(name, 10, 3, SMALL[name])().eval(), SMALL[name]
    if name == "efficientnet_lite0":
        from imagenet import make as make_efficientnet

        return make_efficientnet(), 224
    return getattr(import_torchvision().models, name)(weights=None).eval(), 224


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Return the row of one network."""
    network, size = make(name)
    images = torch.randn(IMAGES, 3, min(size, CALIBRATION_SIZE), min(size, CALIBRATION_SIZE))
    example: Tensor = torch.randn(1, 3, size, size)
    start = time.process_time()
    pruned = depl0.prune(network, images[:1], data=list(images.split(16)), recover=None, quiet=True)
    row: dict[str, Any] = {"network": name, "size": size, "processor_seconds": round(time.process_time() - start)}
    row["macs_share"] = depl0.cost(pruned, example).macs / depl0.cost(network, example).macs
    networks = {"original": network, "pruned": pruned}
    calls = {kind: session_call(export_onnx(each, example), [example], 1) for kind, each in networks.items()}
    times = interleave(calls, torch.device("cpu"), 400, seconds)
    for kind, values in times.items():
        row[f"ms, {kind}"] = 1000 * summarise(values).best
    row["faster"] = asdict(speedup(times["original"], times["pruned"]))
    return row | {"rounds": len(times["original"]), "processor": processor_name()} | provenance()


def main() -> None:
    """Measure what is missing, and write the JSON and the page."""
    parser = options(__doc__ or "")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    file: Path = args.out / "default_latency.json"
    rows = read_rows(file)
    for name in args.networks:
        if name not in {row["network"] for row in rows}:
            rows.append(measure(name, args.seconds))
            save_rows(file, rows)
            print(rows[-1], flush=True)
    (args.out / "default_latency.md").write_text(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page with a line for each network."""
    lines = ["# Latency of networks that are halved with the defaults", "", (__doc__ or "").partition("\n\n")[2], ""]
    lines += [
        "Milliseconds are the mean of the fastest fifth; ratios are those of the medians, with 95 % intervals.",
        "",
    ]
    lines += ["| network | MACs kept | original, ms | pruned, ms | times as fast |", "|---" * 5 + "|"]
    for row in rows:
        faster = row["faster"]
        shown = f"{faster['ratio']:.2f} ({faster['low']:.2f} to {faster['high']:.2f})"
        ms = [f"{row[f'ms, {kind}']:.2f}" for kind in ("original", "pruned")]
        lines.append("| " + " | ".join([row["network"], f"{row['macs_share']:.1%}", *ms, shown]) + " |")
    about = sorted({f"commit {row['commit']} on {row['processor']}" for row in rows})
    return "\n".join([*lines, "", "; ".join(about) + ".", ""])


if __name__ == "__main__":
    main()
