"""Measurements and output of ``depl0 latency``: networks of a model or a run, timed side by side on one device."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depl0.app.deploy.source import open_source
from depl0.app.models.spec import factory
from depl0.app.table import aligned
from depl0.costs.count import cost
from depl0.errors import InputError
from depl0.latency import Timing, compare, machine

Networks = dict[str, nn.Module]


def networks_of_model(spec: str, side: int, channels: int, classes: int) -> tuple[Networks, tuple[int, ...]]:
    """Return a model and the shape of its images."""
    side = side or (224 if ":" in spec or spec == "resnet50" else 32)
    return {"dense": factory(spec, classes, channels, side)().eval()}, (channels, side, side)


def networks_of_run(path: Path) -> tuple[Networks, tuple[int, ...]]:
    """Return the original and the pruned network of a run, and the shape of its images."""
    source = open_source(path)
    if len(source.example) > 1:
        raise InputError(f"latency needs a network with one input; that of {path} has {len(source.example)}.")
    return {"dense": source.make().eval(), "compact": source.module}, tuple(source.example[0].shape[1:])


def measure(
    subject: str,
    networks: Networks,
    shape: tuple[int, ...],
    backends: list[str],
    batches: list[int],
    device_name: str,
    seconds: float,
) -> dict[str, Any]:
    """Return the sizes and times of networks; the first network is the reference for the others."""
    if device_name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device is cuda, but torch sees no CUDA device.", hint="use --device cpu.")
    device, threads = torch.device(device_name), torch.get_num_threads()
    networks = {name: network.to(device) for name, network in networks.items()}

    def make_inputs(size: int) -> Tensor:
        return torch.randn(size, *shape, generator=torch.Generator().manual_seed(0)).to(device)

    timings, omitted = compare(networks, backends, batches, make_inputs, seconds=seconds)
    costs = {name: cost(network, torch.zeros(1, *shape, device=device)) for name, network in networks.items()}
    dense = max(costs["dense"].macs, 1)
    return {
        "subject": subject,
        **machine(device),
        "clock": "CPU time" if device.type == "cpu" and threads == 1 else "wall clock",
        "networks": {
            name: {"params": found.params, "macs": found.macs, "macs_share": found.macs / dense}
            for name, found in costs.items()
        },
        "timings": [_entry(timing) for timing in timings],
        "skipped": omitted,
    }


def _entry(timing: Timing) -> dict[str, Any]:
    fields = dataclasses.asdict(timing)
    return {f"{name}_ms": 1000 * fields.pop(name) for name in ("median", "spread", "best")} | fields


def latency_table(result: dict[str, Any]) -> str:
    """Return sizes, times and speed-ups as text."""
    threads = result["threads"]
    lines = [
        f"{result['subject']} on {result['device']}, {threads} thread{'s' if threads > 1 else ''}, "
        f"torch {result['torch']}; {result['clock']}, interleaved"
    ]
    rows = [["network", "parameters", "MACs", "MACs left"]]
    for name, sizes in result["networks"].items():
        rows.append([name, f"{sizes['params']:,}", f"{sizes['macs']:,}", f"{sizes['macs_share']:.1%}"])
    lines += ["", *aligned(rows, [False, True, True, True])]
    if result["timings"]:
        rows = [["backend", "batch", "network", "ms", "±", "best", "rounds", "as fast"]]
        for entry in result["timings"]:
            times = [f"{entry[name]:.3f}" for name in ("median_ms", "spread_ms", "best_ms")]
            place = [entry["backend"], str(entry["batch"]), entry["network"]]
            rows.append([*place, *times, str(entry["rounds"]), _faster(entry["speedup"])])
        lines += ["", *aligned(rows, [False, True, False, *[True] * 5])]
        lines.append("ms: median ± half of the middle 50 %; best: mean of the fastest fifth")
        lines.append("as fast: ratio of the medians, in brackets its 95 % interval")
    lines += [f"skipped {each['backend']}, batch {each['batch']}: {each['reason']}" for each in result["skipped"]]
    return "\n".join(lines)


def _faster(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['ratio']:.2f}x ({found['low']:.2f} to {found['high']:.2f})"
