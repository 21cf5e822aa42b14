"""Folders of runs, written by hand: what a report is made from, in known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCRIPT = "<script>alert(1)</script>"
RECIPE = """\
name = "known"

[model]
spec = "resnet56"

[data]
spec = "cifar10:data"

[gates]
method = "dep-l0"
generator = "fc"
direction = "forward"
budget = 0.5
of = "macs"

[search]
epochs = {epochs}

[weight_optimizer]
lr = 0.1

[finetune]
epochs = 2

[run]
seed = 7
device = "cpu"
precision = "fp32"
"""


def write_run(folder: Path, *, layers: int = 3, gates: int = 8, epochs: int = 4, prefix: str = "layer") -> Path:
    """Write a finished run in which layer i keeps gates − i − 1 of its gates, or one; its last layer is frozen."""
    folder.mkdir(parents=True)
    names = [f"{prefix}{i}.conv" for i in range(layers)]
    kept = [max(gates - i - 1, 1) for i in range(layers)]
    (folder / "recipe.toml").write_text(RECIPE.format(epochs=epochs))
    _write_lines(folder / "metrics.jsonl", _metrics(names, kept, gates, epochs))
    _write_lines(folder / "gates.jsonl", [{"phase": "search", "epoch": 0, "open": {names[0]: [1000] * gates}}])
    (folder / "environment.json").write_text(
        json.dumps(
            {
                "python": "3.11.7",
                "packages": {"depl0": "0.1.0", "torch": "2.13.0"},
                "commit": "0123456789abcdef",
                "machine": {"system": "Linux", "processor": "x86_64", "cores": 2, "threads": 1, "gpus": []},
            }
        )
    )
    (folder / "summary.json").write_text(json.dumps(_summary(names, kept, gates)))
    return folder


def _summary(names: list[str], kept: list[int], gates: int) -> dict[str, Any]:
    layers: list[dict[str, Any]] = [
        {"layer": layer, "group": layer, "channels": gates, "kept": left, "prunable": gates, "unprunable": {},
         "macs": [1000 * gates, 1000 * left], "params": [90 * gates, 90 * left]}
        for layer, left in zip(names, kept, strict=True)
    ]  # fmt: skip
    layers.append(
        {"layer": "fc", "group": None, "channels": 10, "kept": 10, "prunable": 0,
         "unprunable": {"reaches the network's output": 10}, "macs": [640, 290], "params": [650, 300]}
    )  # fmt: skip
    size = {"macs": 125_490_000, "params": 853_018, "latency_ms": 8.0, "latency_ms_32": 90.0}
    size |= {"file_bytes": 3_500_000}
    return {
        "name": "known",
        "model": "resnet56",
        "data": "cifar10:data",
        "speedup": {batch: {"ratio": 2.0, "low": 1.9, "high": 2.1} for batch in ("1", "32")},
        "dense": {"accuracy": 93.3, **size},
        "compact": {
            "accuracy": 93.05,
            **{key: value / 2 if isinstance(value, float) else value // 2 for key, value in size.items()},
        },
        "budget": 0.5,
        "budget_of": "macs",
        "budget_reached": 0.5,
        "penalty_weight": None,
        "macs_left": 0.5,
        "params_left": 0.5,
        "freezing": {"accuracy_before": 91.0, "accuracy_after": 90.5, "gates_closed": 1},
        "certificate": {"max_error": 1e-16, "dtype": "float64", "inputs": 3},
        "groups": {layer: {"gates": gates, "open": left} for layer, left in zip(names, kept, strict=True)},
        "layers": layers,
        "compactions": [{"epoch": 3.0, "step": 30, "macs_share": 0.6}],
        "steps": 60,
        "seconds": 7440.0,
        "seed": 7,
    }


def _metrics(names: list[str], kept: list[int], gates: int, epochs: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        left = 1 - 0.5 * epoch / epochs
        shares = {"macs_share": left, "params_share": left}
        opened = {name: gates - (gates - few) * epoch // epochs for name, few in zip(names, kept, strict=True)}
        lines.append(
            {"phase": "search", "epoch": epoch, "step": 10 * epoch, "loss": 2 / epoch, "task_loss": 2 / epoch,
             "train_accuracy": 80.0 + epoch % 10, "test_accuracy": 79.0 + epoch % 10, "expected": shares,
             "kept": shares, "open_gates": opened, "seconds": 40.0 + epoch}
        )  # fmt: skip
        if epoch == 3:
            lines.append({"event": "compaction", "phase": "search", "epoch": 3.0, "step": 30, "macs_share": 0.6})
    lines.append({"event": "freezing", "phase": "search", "epoch": epochs, "step": 10 * epochs})
    for epoch in (1, 2):
        lines.append(
            {"phase": "finetune", "epoch": epoch, "step": 10 * (epochs + epoch), "loss": 0.3, "task_loss": 0.3,
             "train_accuracy": 92.0, "test_accuracy": 92.5 + epoch / 4, "seconds": 20.0}
        )  # fmt: skip
    return lines


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
