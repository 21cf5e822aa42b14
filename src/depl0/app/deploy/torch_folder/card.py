"""``README.md`` of an exported folder, in the format of a model card for the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from depl0.app.table import markdown_text
from depl0.app.tasks import metric_in
from depl0.gates.threshold import COSTS

_PIPELINES = {"accuracy": "image-classification", "miou": "image-segmentation"}


def model_card(name: str, network: str, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the text of the card; what a run does not say is left out."""
    front = _front_matter(name, config, summary)
    parts = [
        "---\n" + front + "---\n",
        f"# {markdown_text(name)}\n",
        _lead(network, config, summary),
        _figures(config, summary),
        "## How to load it\n",
        _LOAD.format(shape=", ".join(map(str, config["input_shapes"][0]))),
        _inputs(config),
        _made(config, summary),
    ]
    return "\n".join(part for part in parts if part)


_LOAD = """```python
import torch
from model import load  # model.py of this folder

network = load()
scores = network(torch.zeros({shape}))
```

`model.py` is plain PyTorch: it builds the network with the sizes in `config.json` and loads `model.safetensors`
strictly. Nothing of depl0 is needed.
"""


def _front_matter(name: str, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the card's YAML. JSON texts are YAML as well, so names cannot break it."""
    metric = metric_in(dict(summary))
    score = summary.get("compact", {}).get(metric.name)
    lines = ["library_name: pytorch"]
    if metric.name in _PIPELINES and score is not None:
        lines.append(f"pipeline_tag: {_PIPELINES[metric.name]}")
    lines += ["tags:", "- pruning", "- structured-pruning", "- depl0"]
    data = config.get("data")
    if data:
        lines += ["datasets:", f"- {json.dumps(data)}"]
    if data and score is not None:
        task = _PIPELINES.get(metric.name, "other")
        lines += [
            "metrics:",
            f"- {metric.name}",
            "model-index:",
            f"- name: {json.dumps(name)}",
            "  results:",
            "  - task:",
            f"      type: {task}",
            "    dataset:",
            f"      name: {json.dumps(data)}",
            f"      type: {json.dumps(data)}",
            "      split: test",
            "    metrics:",
            f"    - type: {metric.name}",
            f"      value: {score:.6g}",
        ]
    return "\n".join(lines) + "\n"


def _lead(network: str, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    left = config["macs"] / max(config["dense_macs"], 1)
    what = str(summary.get("model") or network).replace("`", "'")
    data = f", trained on {markdown_text(config['data'])}" if config.get("data") else ""
    return f"A pruned `{what}`{data}: {left:.1%} of the multiply-accumulates are left. The channels are really gone.\n"


def _figures(config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    metric = metric_in(dict(summary))
    dense, compact = summary.get("dense", {}), summary.get("compact", {})
    rows = ["| | dense | this network |", "|---|---|---|"]
    if compact.get(metric.name) is not None:
        before = dense.get(metric.name)
        shown = "not trained" if before is None else metric.show(before)
        rows.append(f"| {metric.label} | {shown} | {metric.show(compact[metric.name])} |")
    rows.append(f"| MACs of one input | {config['dense_macs']:,} | {config['macs']:,} |")
    rows.append(f"| parameters | {config['dense_params']:,} | {config['params']:,} |")
    if compact.get("latency_ms") and dense.get("latency_ms"):
        rows.append(f"| milliseconds, batch 1 | {dense['latency_ms']:.2f} | {compact['latency_ms']:.2f} |")
    note = "\nMilliseconds are those of the machine that pruned it." if len(rows) == 6 else ""
    return "\n".join(rows) + "\n" + note + ("\n" if note else "")


def _inputs(config: Mapping[str, Any]) -> str:
    lines = []
    if config.get("input_mean") and config.get("input_std"):
        lines.append(
            f"Inputs: pixels in [0, 1], minus {_list(config['input_mean'])}, divided by {_list(config['input_std'])} "
            "(one number for each channel)."
        )
    if config.get("class_names"):
        lines.append(f"Classes, in order: {', '.join(markdown_text(str(name)) for name in config['class_names'])}.")
    return "\n\n".join(lines) + "\n" if lines else ""


def _list(numbers: list[float]) -> str:
    return "(" + ", ".join(f"{number:.4g}" for number in numbers) + ")"


def _made(config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    epochs, error = summary.get("epochs") or {}, summary.get("certificate", {}).get("max_error")
    of = summary.get("budget_of") or "cost"
    facts = {
        "method": summary.get("method"),
        "budget": f"{summary['budget']} of the {COSTS.get(of, of)}" if summary.get("budget") else None,
        "epochs": ", ".join(f"{phase} {count}" for phase, count in epochs.items()),
        "seed": summary.get("seed"),
        "largest difference to the gated network": None if error is None else f"{error:.1e}",
        "depl0": config["version"],
    }
    lines = [f"- {what}: {value}" for what, value in facts.items() if value not in (None, "")]
    trained = "" if not epochs else ", and the rest was " + ("trained on" if any(epochs.values()) else "not trained")
    how = f"channels were chosen and cut out{trained}."
    return f"## How it was made\n\nBy depl0: {how}\n\n" + "\n".join(lines) + "\n"
