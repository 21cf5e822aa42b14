"""Compare rounded and unrounded channel numbers at equal latency. Makes benchmarks/results/rounding.

    python benchmarks/rounding.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors

Every cell cuts a trained network to a budget of the MACs, in whole channels or in multiples of N, by the same scores
(reconstruction), compensates, and times the compact network alternately with the dense one. With --steps it is then
distilled from the dense network for this number of steps, and measured again. Run it again to resume: cells that OUT
already has are not computed again.

    python benchmarks/rounding.py OUT --data … --weights … --cells 0.5:1 0.5:8 0.55:8 0.6:8 --only-time

only cuts and times: so it is found, without looking at an image's label, which budget in multiples of N takes the time
of which budget in any number of channels. Those are then worth training.
"""

from __future__ import annotations

import argparse
import copy
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import mean_spread, network_options, provenance, read_rows, save_rows
from one_shot import Images, accuracy, calibration, cut, open_splits, scores_of
from torch import Tensor, nn

import depl0
from depl0.app import models
from depl0.app.models.weights import load_weights
from depl0.export.onnx import export_onnx
from depl0.gated import GatedModel
from depl0.latency import fastest_fifth_mean, interleave, processor_name, ratio, session_call
from depl0.select.gates import select_gates
from depl0.select.rounding import round_within

KEY = ("model", "groups", "budget", "round_to", "seed", "steps", "batch_size", "rate", "processor")
WEIGHT, TEMPERATURE = 0.9, 4.0


@dataclass(frozen=True)
class Cell:
    """One way to cut."""

    budget: float
    round_to: int

    @classmethod
    def read(cls, words: str) -> Cell:
        """Read budget:multiple."""
        budget, _, multiple = words.partition(":")
        return cls(float(budget), int(multiple))


def relative_times(
    dense: nn.Module, compact: dict[Cell, nn.Module], inputs: Tensor, seconds: float
) -> dict[Cell, dict[str, float]]:
    """Return every compact network's time as a fraction of the dense one's, in PyTorch and in ONNX Runtime.

    All networks are timed alternately, so that noise affects all of them equally, also when two compact ones are
    compared.
    """
    networks: dict[str, nn.Module] = {"dense": dense.eval()} | {
        str(c): network.eval() for c, network in compact.items()
    }
    found: dict[Cell, dict[str, float]] = {cell: {} for cell in compact}
    with torch.inference_mode():
        eager = {name: (lambda n=network: n(inputs)) for name, network in networks.items()}  # type: ignore[misc]
        onnx = {name: session_call(export_onnx(network, inputs), [inputs], 1) for name, network in networks.items()}
        for backend, calls in (("eager", eager), ("onnxruntime", onnx)):
            times = interleave(calls, inputs.device, 400, seconds)
            for cell in compact:
                found[cell][f"{backend}_{len(inputs)}"] = ratio(times[str(cell)], times["dense"])
            found_ms = 1000 * fastest_fifth_mean(times["dense"])
            print(f"dense, {backend}, batch {len(inputs)}: {found_ms:.3f} ms, {len(times['dense'])} rounds", flush=True)
            for cell in compact:
                found[cell][f"{backend}_{len(inputs)}_dense_ms"] = found_ms
                found[cell][f"{backend}_{len(inputs)}_rounds"] = len(times["dense"])
    return found


def chosen(gated: GatedModel, scores: Tensor, budget: float, round_to: int) -> Tensor:
    """Return the gates that stay open."""
    network, config = gated.snapshot(), gated.config.changed(budget=budget, of="macs")
    is_open = select_gates(network, config, scores).gates > 0
    if round_to == 1:
        return is_open
    return round_within(network, config.changed(round_to=round_to), scores, is_open)


def train(
    compact: nn.Module, teacher: nn.Module, images: Images, steps: int, batch_size: int, rate: float, seed: int
) -> None:
    """Train on the teacher's outputs and the labels, with flips and shifts, at a rate that falls to zero."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(compact.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    compact.train()
    teacher.eval()
    losses = []
    for _ in range(steps):
        chosen = torch.randint(len(images[0]), (batch_size,), generator=rng)
        x, y = images[0][chosen], images[1][chosen]
        flip = torch.rand(batch_size, generator=rng) < 0.5
        x[flip] = x[flip].flip(-1)
        top, left = torch.randint(9, (2,), generator=rng).tolist()
        x = F.pad(x, (4, 4, 4, 4))[..., top : top + 32, left : left + 32]
        with torch.no_grad():
            soft = (teacher(x) / TEMPERATURE).softmax(1)
        out = compact(x)
        distilled = F.kl_div((out / TEMPERATURE).log_softmax(1), soft, reduction="batchmean") * TEMPERATURE**2
        loss = WEIGHT * distilled + (1 - WEIGHT) * F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    tenth = max(1, steps // 10)
    print(f"loss {statistics.mean(losses[:tenth]):.3f} -> {statistics.mean(losses[-tenth:]):.3f}", flush=True)
    compact.eval()


def run(args: argparse.Namespace, rows: list[dict[str, Any]], file: Path) -> None:
    """Compute the cells that are missing."""
    splits = open_splits(args.data)
    known = {tuple(row.get(key) for key in KEY) for row in rows}
    cells = [Cell.read(words) for words in args.cells]
    for seed in args.seeds:

        def key(cell: Cell, seed: int = seed) -> tuple[Any, ...]:
            training = (args.batch_size, args.rate) if args.steps else (None, None)
            named = (args.model, args.groups, cell.budget, cell.round_to, seed, args.steps)
            return (*named, *training, processor_name())

        missing = [cell for cell in cells if key(cell) not in known]
        if not missing:
            continue
        batches = calibration(splits["rest"], seed)
        host = models.build(args.model)
        load_weights(host, args.weights)
        dense = copy.deepcopy(host.eval())
        gated = depl0.attach(host, batches[0][0][:1], generator="independent", groups=args.groups)
        state = {name: tensor.clone() for name, tensor in host.state_dict().items()}
        scores = scores_of("reconstruction", gated, batches)
        compact, about = {}, {}
        for cell in missing:
            host.load_state_dict(state)
            gated.free_gates()
            gated.start_from(scores)
            is_open = chosen(gated, scores, cell.budget, cell.round_to)
            compact[cell] = cut(gated, is_open, "none" if args.only_time else "compensation", batches)
            macs = depl0.cost(compact[cell], batches[0][0][:1]).macs / gated.dense_cost.macs
            kept = {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups}
            about[cell] = {"macs_share": macs, "kept": kept}
        for batch in args.batches:
            for cell, times in relative_times(dense, compact, splits["rest"][0][:batch], args.seconds).items():
                about[cell] |= times
        for cell in missing:
            row = dict(zip(KEY, key(cell), strict=True)) | about[cell]
            if not args.only_time:
                row["at_cut"] = accuracy(compact[cell], splits["test"])
                if args.steps:
                    train(compact[cell], dense, splits["rest"], args.steps, args.batch_size, args.rate, seed)
                    row["trained"] = accuracy(compact[cell], splits["test"])
                rows.append(row | provenance())
                save_rows(file, rows)
            print({name: value for name, value in row.items() if name != "kept"}, flush=True)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table, mean ± standard deviation over seeds."""
    heads = ["budget", "multiple", "n", "MACs left", *(_title(key) for key in _times(rows))]
    heads += ["accuracy at the cut", "after training"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for budget, multiple in sorted({(row["budget"], row["round_to"]) for row in rows}, key=lambda k: (k[1], k[0])):
        own = [row for row in rows if (row["budget"], row["round_to"]) == (budget, multiple)]
        cells = [f"{budget:g}", str(multiple), str(len(own)), _mean(own, "macs_share", 3)]
        cells += [_mean(own, key, 3) for key in _times(rows)] + [_mean(own, "at_cut", 2), _mean(own, "trained", 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def pairs(rows: list[dict[str, Any]]) -> list[str]:
    """Compare every rounded cell with the unrounded one of the same seed: time over time, and points of accuracy."""
    plain = {row["seed"]: row for row in rows if row["round_to"] == 1}
    rounded = [row for row in rows if row["round_to"] > 1 and row["seed"] in plain]
    if not rounded:
        return []
    heads = ["rounded : unrounded", "n", *(_title(key) for key in _times(rows)), "points at the cut", "after training"]
    lines = ["", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for budget, multiple in sorted({(row["budget"], row["round_to"]) for row in rounded}):
        own = []
        for row in [row for row in rounded if (row["budget"], row["round_to"]) == (budget, multiple)]:
            other = plain[row["seed"]]
            found = {key: row[key] / other[key] for key in _times(rows) if row.get(key) and other.get(key)}
            for key in ("at_cut", "trained"):
                if row.get(key) is not None and other.get(key) is not None:
                    found[key] = row[key] - other[key]
            own.append(found)
        unrounded = next(iter(plain.values()))["budget"]
        cells = [f"{budget:g} in multiples of {multiple} : {unrounded:g}", str(len(own))]
        cells += [_mean(own, key, 3) for key in _times(rows)] + [_mean(own, "at_cut", 2), _mean(own, "trained", 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _times(rows: list[dict[str, Any]]) -> list[str]:
    return sorted({key for row in rows for key in row if re.fullmatch(r"(eager|onnxruntime)_\d+", key)})


def _title(key: str) -> str:
    backend, _, batch = key.partition("_")
    return f"time, {'PyTorch' if backend == 'eager' else 'ONNX Runtime'}, batch {batch}"


def _mean(rows: list[dict[str, Any]], key: str, digits: int) -> str:
    return mean_spread([row[key] for row in rows if row.get(key) is not None], digits)


def main() -> None:
    """Compute, and write the JSON and the table."""
    parser = network_options(__doc__, seeds=[0, 1, 2])
    parser.add_argument("--cells", nargs="+", default=["0.5:1", "0.5:8"], help="budget:multiple")
    parser.add_argument("--batches", nargs="+", type=int, default=[32])
    parser.add_argument("--groups", default="inner")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each backend and batch")
    parser.add_argument("--collect", type=Path, nargs="*", default=[], help="further rounding.json to take rows from")
    parser.add_argument("--only-time", action="store_true", help="measure no accuracy and write nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "rounding.json"
    rows = read_rows(file)
    if args.data:
        run(args, rows, file)
    for part in args.collect:
        rows += [row for row in read_rows(part) if row not in rows]
        save_rows(file, rows)
    lines = []
    for key in sorted({_series(row) for row in rows}, key=str):
        part = [row for row in rows if _series(row) == key]
        model, groups, steps, batch_size, rate, processor = key
        trained = f"{steps} steps of {batch_size} at a rate of {rate}" if batch_size else f"{steps} steps of training"
        commits = ", ".join(sorted({row["commit"] for row in part}))
        lines += [f"### {model}, groups {groups}, {trained}: {processor}", "", *table(part), *pairs(part), ""]
        lines += [f"Commits {commits}; torch {part[-1]['torch']}.", ""]
    (args.out / "table.md").write_text("\n".join(lines))


def _series(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the settings that all cells of a table share. Rows of the first version have one network and machine."""
    first = {"groups": "all", "processor": "an earlier machine, not recorded"}
    fields = ("model", "groups", "steps", "batch_size", "rate", "processor")
    return tuple(row.get(name, first.get(name)) for name in fields)


if __name__ == "__main__":
    main()
