"""What does rounding cost or bring at equal milliseconds? Makes docs/results/rounding.

    python benchmarks/rounding.py OUT --data cifar10:DIR --weights resnet20_cifar10.safetensors

Every cell cuts a trained network to a budget of the MACs, in whole channels or in multiples of N, by the same scores
(reconstruction), compensates, and times the compact network in turns with the dense one. With --steps it is then
trained for so many steps on the dense network's outputs, and measured again. Run it again to go on: cells that OUT
already has are not computed again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from one_shot import Images, accuracy, calibration, cut, open_splits, provenance, scores_of
from torch import Tensor, nn

import depl0
from depl0.budgets.freeze import open_within, within
from depl0.budgets.rounding import round_within
from depl0.export.onnx import export_onnx
from depl0.gated import GatedModel
from depl0.latency.backends import session_call
from depl0.latency.measure import interleave, ratio
from depl0.weights import load_weights

KEY = ("model", "budget", "round_to", "seed", "steps")
EXPORTED: dict[tuple[int, int], bytes] = {}
"""dense networks as ONNX files, by batch size"""
RATE, WEIGHT, TEMPERATURE, BATCH = 0.02, 0.9, 4.0, 128


def relative_times(dense: nn.Module, compact: nn.Module, inputs: Tensor, seconds: float) -> dict[str, float]:
    """Return the compact network's time as a share of the dense one's, in PyTorch and in ONNX Runtime."""
    networks = {"dense": dense.eval(), "compact": compact.eval()}
    found = {}
    with torch.inference_mode():
        calls = {name: (lambda n=network: n(inputs)) for name, network in networks.items()}  # type: ignore[misc]
        times = interleave(calls, inputs.device, 200, seconds)
        found[f"eager_{len(inputs)}"] = ratio(times["compact"], times["dense"])
    key = (id(dense), len(inputs))
    if key not in EXPORTED:
        EXPORTED[key] = export_onnx(dense, inputs)
    files = {"dense": EXPORTED[key], "compact": export_onnx(compact, inputs)}
    calls = {name: session_call(file, inputs, 1) for name, file in files.items()}
    times = interleave(calls, inputs.device, 200, seconds)
    found[f"onnxruntime_{len(inputs)}"] = ratio(times["compact"], times["dense"])
    return found


def chosen(gated: GatedModel, scores: Tensor, budget: float, round_to: int) -> tuple[Tensor, float | None]:
    """Return the gates, and how near their value is to the bound on it."""
    is_open = open_within(gated, scores, budget, "macs")
    if round_to == 1:
        return is_open, None
    found = round_within(gated.plan, is_open, scores, round_to, within(gated, budget, "macs"))
    return found.is_open, None if found.bound is None else found.value / found.bound


def train(compact: nn.Module, teacher: nn.Module, images: Images, steps: int, seed: int) -> None:
    """Train on the teacher's outputs and the labels, with flips and shifts, at a rate that falls to zero."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(compact.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    compact.train()
    teacher.eval()
    for _ in range(steps):
        chosen = torch.randint(len(images[0]), (BATCH,), generator=rng)
        x, y = images[0][chosen], images[1][chosen]
        flip = torch.rand(BATCH, generator=rng) < 0.5
        x[flip] = x[flip].flip(-1)
        top, left = torch.randint(9, (2,), generator=rng).tolist()
        x = F.pad(x, (4, 4, 4, 4))[..., top : top + 32, left : left + 32]
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                soft = (teacher(x).float() / TEMPERATURE).softmax(1)
            out = compact(x).float()
        distilled = F.kl_div((out / TEMPERATURE).log_softmax(1), soft, reduction="batchmean") * TEMPERATURE**2
        loss = WEIGHT * distilled + (1 - WEIGHT) * F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    compact.eval()


def run(args: argparse.Namespace, rows: list[dict[str, Any]], save: Any) -> None:
    """Compute the cells that are missing."""
    splits = open_splits(args.data)
    known = {tuple(row[key] for key in KEY) for row in rows}
    cells = [tuple(map(float, cell.split(":"))) for cell in args.cells]
    for seed in args.seeds:
        missing = [cell for cell in cells if (args.model, cell[0], int(cell[1]), seed, args.steps) not in known]
        if not missing:
            continue
        batches = calibration(splits["rest"], seed)
        host = depl0.models.build(args.model)
        load_weights(host, args.weights)
        dense = copy.deepcopy(host.eval())
        gated = depl0.attach(host, batches[0][0][:1], generator="independent")
        state = {name: tensor.clone() for name, tensor in host.state_dict().items()}
        scores = scores_of("reconstruction", gated, batches)
        for budget, multiple in missing:
            host.load_state_dict(state)
            gated.free_gates()
            gated.start_from(scores)
            is_open, near = chosen(gated, scores, budget, int(multiple))
            compact = cut(gated, is_open, "compensation", batches)
            row = dict(zip(KEY, (args.model, budget, int(multiple), seed, args.steps), strict=True))
            row["macs_share"] = depl0.cost(compact, batches[0][0][:1]).macs / gated.dense_cost.macs
            row["of_bound"] = near
            row["kept"] = {group.name: int(is_open[group.gates].sum()) for group in gated.plan.groups}
            for batch in args.batches:
                row |= relative_times(dense, compact, splits["rest"][0][:batch], args.seconds)
            row["at_cut"] = accuracy(compact, splits["test"])
            if args.steps:
                train(compact, dense, splits["rest"], args.steps, seed)
                row["trained"] = accuracy(compact, splits["test"])
            rows.append(row | provenance())
            save(rows)
            print({key: value for key, value in row.items() if key != "kept"}, flush=True)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table, mean ± standard deviation over seeds."""
    times = sorted({key for row in rows for key in row if key.startswith(("eager_", "onnxruntime_"))})
    heads = ["budget", "multiple", "n", "MACs left", *(f"time, {key.replace('_', ', batch ')}" for key in times)]
    heads += ["accuracy at the cut", "after training"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for budget, multiple in sorted({(row["budget"], row["round_to"]) for row in rows}, key=lambda k: (k[1], k[0])):
        own = [row for row in rows if (row["budget"], row["round_to"]) == (budget, multiple)]
        cells = [f"{budget:g}", str(multiple), str(len(own)), _mean(own, "macs_share", 3)]
        cells += [_mean(own, key, 3) for key in times] + [_mean(own, "at_cut", 2), _mean(own, "trained", 2)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _mean(rows: list[dict[str, Any]], key: str, digits: int) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    """Compute, and write the JSON and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of rounding.json and table.md")
    parser.add_argument("--data")
    parser.add_argument("--weights")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--cells", nargs="+", default=["0.5:1", "0.5:8"], help="budget:multiple")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--batches", nargs="+", type=int, default=[32])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "rounding.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []

    def save(rows: list[dict[str, Any]]) -> None:
        file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")

    if args.data:
        run(args, rows, save)
    lines = []
    for model, steps in sorted(set(itertools.starmap(lambda m, s: (m, s), [(r["model"], r["steps"]) for r in rows]))):
        part = [row for row in rows if (row["model"], row["steps"]) == (model, steps)]
        lines += [f"### {model}, {steps} steps of training", "", *table(part), ""]
    (args.out / "table.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
