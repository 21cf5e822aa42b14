"""Pruning without labels beyond image classifiers: a U-Net, a small ViT and a small language model, trained here.

    python benchmarks/other_tasks.py OUT --data cifar10:DIR     # trains what is missing, then prunes
    python benchmarks/other_tasks.py OUT                        # the page alone, from the rows that are there

Makes benchmarks/results/one-shot/other-tasks.{json,md}. Every cell prunes to 70 % of the MACs with a sample of 1,024
training inputs, an eighth of them held out, and is then measured on test data, which no choice depends on. Cells that
OUT already has are not computed again. Networks and data:

- ``unet``: which pixels of a CIFAR-10 image belong to a handwritten digit (scikit-learn's) that was put onto it, and
  which digit is it? 11 classes per pixel, batch norms, skip connections by concatenation
- ``vit``: classes of CIFAR-10 images; 6 blocks of 96, patches of 4 x 4
- ``gpt``: the next byte of Python's own library; 4 causal blocks of 128, 128 bytes of context; every tenth file is test
  data
"""

from __future__ import annotations

import copy
import itertools
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import mean_spread, network_options, provenance, read_rows, save_rows
from one_shot import open_splits
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import depl0
from depl0.app.methods import METHODS, Scored
from depl0.search.calibration import hold_out
from depl0.search.freezing import freeze_network
from depl0.search.recovery.outputs import compare_by
from depl0.search.recovery.self_distillation import PATIENCE, STEPS, distill

KEY = ("network", "method", "budget", "recover", "seed")
DRAW, CONTEXT, BYTES = 1024, 128, 256
INTRODUCTION = """\
# Pruning without labels beyond classifiers

70 % of the MACs, 1,024 unlabelled training inputs, 128 of them held back; mean ± sample standard deviation over n
draws. Loss: cross entropy per image, pixel or byte of the test data, and its change against the dense network. Written
by `benchmarks/other_tasks.py` from `other_tasks.json`. The networks were trained for minutes by that file, so they are
far from the best of their kind. `depl0` is one call of `depl0.prune`, "none" with `recover=None`; `l1-norm` removes the
channels with the smallest L1 norm and refits nothing; its recovery is that of `depl0.prune`. No augmentation.

"""


class Block(nn.Module):
    """A transformer block with norms before attention and MLP."""

    def __init__(self, width: int, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform: (batch, tokens, width)."""
        batch, tokens, _ = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, tokens, -1))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A classifier of 32 x 32 images."""

    def __init__(self, width: int = 96, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(Block(width, heads, is_causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, 32, 32) to (batch, classes)."""
        x = self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.positions)
        scores: Tensor = self.head(self.norm(x).mean(1))
        return scores


class GPT(nn.Module):
    """A language model of bytes."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, CONTEXT, width))
        self.blocks = nn.Sequential(*(Block(width, heads, is_causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, tokens) to (batch, tokens, 256)."""
        scores: Tensor = self.head(self.norm(self.blocks(self.bytes(text) + self.positions[:, : text.shape[1]])))
        return scores


class UNet(nn.Module):
    """Two steps down, two up, with concatenated skips."""

    def __init__(self, width: int = 16, classes: int = 11) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for before in (inputs, outputs):
                layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            return nn.Sequential(*layers)

        self.down1, self.down2, self.middle = stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width)
        self.widen2, self.widen1 = (nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in (2 * width, width))
        self.up2, self.up1 = stage(4 * width, 2 * width), stage(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 3, h, w) to (batch, classes, h, w)."""
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.middle(F.max_pool2d(second, 2))
        x = self.up2(torch.cat([second, self.widen2(x)], 1))
        scores: Tensor = self.head(self.up1(torch.cat([first, self.widen1(x)], 1)))
        return scores


# -- data ------------------------------------------------------------------------------------------------------------

Pairs = tuple[Tensor, Tensor]


def images(spec: str) -> dict[str, Pairs]:
    """Return CIFAR-10 as it is."""
    splits = open_splits(spec)
    return {"train": splits["rest"], "test": splits["test"]}


def digits_on_images(spec: str) -> dict[str, Pairs]:
    """Put a digit, three times enlarged, anywhere onto every image; the class of a pixel is 0 or digit + 1."""
    drawn, names = load_digits(return_X_y=True)
    drawings = F.interpolate(torch.tensor(drawn / 16.0).float().view(-1, 1, 8, 8), scale_factor=3, mode="bilinear")
    found = {}
    for number, (split, (pictures, _)) in enumerate(images(spec).items()):
        rng = torch.Generator().manual_seed(number)
        half = len(names) // 2  # test digits are others than those of the training
        chosen = torch.randint(half, (len(pictures),), generator=rng) + number * half
        corners = torch.randint(9, (len(pictures), 2), generator=rng).tolist()
        pictures, classes = pictures.clone(), torch.zeros(len(pictures), 32, 32, dtype=torch.long)
        for place, (digit, (top, left)) in enumerate(zip(chosen.tolist(), corners, strict=True)):
            ink = drawings[digit, 0]
            rows, columns = slice(top, top + 24), slice(left, left + 24)
            pictures[place, :, rows, columns] = pictures[place, :, rows, columns] * (1 - ink) + 2 * ink
            classes[place, rows, columns] = torch.where(ink > 0.5, int(names[digit]) + 1, 0)
        found[split] = (pictures, classes)
    return found


def python_library(_: str) -> dict[str, Pairs]:
    """Cut the sources of Python's library into pieces."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    found = {}
    for split, chosen in (("train", [f for n, f in enumerate(files) if n % 10]), ("test", files[::10])):
        text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in chosen)), dtype=torch.uint8).long()
        pieces = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
        found[split] = (pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())
    return found


@dataclass(frozen=True)
class Task:
    """A network, its data and its training."""

    make: Callable[[], nn.Module]
    data: Callable[[str], dict[str, Pairs]]
    class_axis: int
    steps: int
    batch_size: int
    lr: float

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(network(inputs).float().movedim(self.class_axis, 1), targets)

    @torch.no_grad()
    def measure(self, network: nn.Module, test: Pairs) -> dict[str, float]:
        """Return loss and accuracy on test data."""
        network.eval()
        loss = right = 0.0
        for inputs, targets in zip(test[0].split(250), test[1].split(250), strict=True):
            scores = network(inputs).movedim(self.class_axis, 1)
            loss += len(inputs) * float(F.cross_entropy(scores, targets))
            right += len(inputs) * float((scores.argmax(1) == targets).float().mean())
        return {"loss": loss / len(test[0]), "accuracy": 100 * right / len(test[0])}


TASKS = {
    "unet": Task(UNet, digits_on_images, class_axis=1, steps=600, batch_size=128, lr=4e-3),
    "vit": Task(ViT, images, class_axis=1, steps=2000, batch_size=64, lr=2e-3),
    "gpt": Task(GPT, python_library, class_axis=-1, steps=1500, batch_size=32, lr=2e-3),
}


def trained(name: str, task: Task, train: Pairs, file: Path) -> nn.Module:
    """Return the trained network, from its file if there is one."""
    torch.manual_seed(0)
    network = task.make()
    if file.exists():
        network.load_state_dict(load_file(file))
        return network.eval()
    adam = torch.optim.AdamW(network.parameters(), lr=task.lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, task.lr, total_steps=task.steps, pct_start=0.1)
    for step in range(task.steps):
        chosen = torch.randint(len(train[0]), (task.batch_size,))
        inputs, targets = train[0][chosen], train[1][chosen]
        if name == "vit" and step % 2:
            inputs = inputs.flip(-1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.loss(network, inputs, targets)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()
        schedule.step()
        if step % 250 == 0:
            print(f"{name}: step {step}, loss {float(loss.detach()):.3f}", flush=True)
    save_file(network.state_dict(), file)
    return network.eval()


# -- pruning ---------------------------------------------------------------------------------------------------------


def with_depl0(dense: nn.Module, batches: list[Tensor], task: Task, budget: float, recover: str) -> nn.Module:
    """Prune by one call."""
    steps: Any = "auto" if recover == "auto" else int(recover)
    example, axis = batches[0][:1], task.class_axis
    return depl0.prune(dense, example, data=batches, budget=budget, recover=steps, class_axis=axis, quiet=True)


def with_l1_norm(dense: nn.Module, batches: list[Tensor], task: Task, budget: float, recover: str) -> nn.Module:
    """Remove the channels with the smallest L1 norm, the same share of every group."""
    gated = depl0.attach(copy.deepcopy(dense), batches[0][:1], budget=budget, generator="independent")
    method = METHODS["l1-norm"]
    assert isinstance(method, Scored)
    scores = method.scores(gated, [], F.cross_entropy, torch.Generator())
    freeze_network(gated, scores=method.comparable(gated.plan, scores))
    compact = gated.extract()
    if recover != "0":
        inputs, held_back = hold_out(batches)
        comparison, teacher = compare_by(dense, batches[0], task.class_axis), copy.deepcopy(dense)
        steps, patience = (STEPS, PATIENCE) if recover == "auto" else (int(recover), None)
        distill(compact, teacher, inputs, held_back, steps=steps, patience=patience, comparison=comparison)
    return compact


CUTS = {"depl0": with_depl0, "l1-norm": with_l1_norm}


def main() -> None:
    """Compute the cells that are missing, and write the JSON and the page."""
    parser = network_options(__doc__, seeds=[0, 1, 2])
    parser.add_argument("--networks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(CUTS), choices=list(CUTS))
    parser.add_argument("--budget", type=float, default=0.7)
    parser.add_argument("--recover", nargs="+", default=["0", "auto"], help="steps of recovery, 0: at the cut")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "other_tasks.json"
    rows = read_rows(file)
    for name in args.networks if args.data else []:
        task = TASKS[name]
        data = task.data(args.data)
        dense = trained(name, task, data["train"], args.out / f"{name}.safetensors")
        whole = task.measure(dense, data["test"])
        known = {tuple(row[key] for key in KEY) for row in rows}
        for seed, recover, method in itertools.product(args.seeds, args.recover, args.methods):
            cell = (name, method, args.budget, recover, seed)
            if cell in known:
                continue
            rng = torch.Generator().manual_seed(seed)
            batches = list(data["train"][0][torch.randperm(len(data["train"][0]), generator=rng)[:DRAW]].split(128))
            used = time.process_time()
            compact = CUTS[method](dense, batches, task, args.budget, recover)
            row: dict[str, Any] = dict(zip(KEY, cell, strict=True))
            row |= {
                "processor_seconds": round(time.process_time() - used, 1),
                "most_steps": STEPS if recover == "auto" else int(recover),
            }
            row |= task.measure(compact, data["test"]) | {"dense": whole}
            row["macs_share"] = depl0.info(compact).macs_left
            rows.append(row | provenance())
            save_rows(file, rows)
            print(f"{row['loss']:.4f} ({whole['loss']:.4f})", *cell, f"{row['processor_seconds']:.0f} s", flush=True)
    (args.out / "other-tasks.md").write_text(INTRODUCTION + "\n".join(table(rows)) + "\n")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table: a row for each network, method and recovery."""
    lines = [
        "| network | method | recovery | loss | change | accuracy, % | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        dense = own[0]["dense"]
        lines.append(f"| {name} | dense | – | {dense['loss']:.4f} | – | {dense['accuracy']:.2f} | – |")
        for method, recover in sorted({(row["method"], row["recover"]) for row in own}):
            same = [row for row in own if (row["method"], row["recover"]) == (method, recover)]
            changes = [100 * (row["loss"] / dense["loss"] - 1) for row in same]
            cells = [
                mean_spread([row["loss"] for row in same], 4, count=True),
                mean_spread(changes, 1) + " %",
                mean_spread([row["accuracy"] for row in same]),
                mean_spread([row["processor_seconds"] for row in same], 0),
            ]
            lines.append(f"| {name} | {method} | {'none' if recover == '0' else recover} | " + " | ".join(cells) + " |")
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    return [*lines, "", f"Commits {commits}."]


if __name__ == "__main__":
    main()
