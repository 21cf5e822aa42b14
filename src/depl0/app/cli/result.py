"""The end of ``depl0 prune``: what it prints, and the deployed file where the recipe asks for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from depl0._util.optional import check_installed
from depl0.app.recipes.recipe import Recipe
from depl0.app.runs.paths import resolve_paths
from depl0.app.table import MISSING, aligned
from depl0.app.tasks import Metric, metric_in
from depl0.latency.measure import Speedup
from depl0.surgery.record import Agreement

Row: TypeAlias = tuple[str, str, str, str]


def result_table(summary: dict[str, Any], folder: Path) -> str:
    """Return the table dense → compact, and where the files are."""
    dense, compact, metric = summary["dense"], summary["compact"], metric_in(summary)
    rows = [
        ("", "dense", "compact", ""),
        *_metric_rows(metric, summary),
        ("MACs", f"{dense['macs']:,}", f"{compact['macs']:,}", f"{compact['macs'] / dense['macs']:.1%} left"),
        (
            "parameters",
            f"{dense['params']:,}",
            f"{compact['params']:,}",
            f"{compact['params'] / dense['params']:.1%} left",
        ),
        (
            "latency, batch 1",
            f"{dense['latency_ms']:.2f} ms",
            f"{compact['latency_ms']:.2f} ms",
            Speedup(**summary["speedup"]["1"]).in_words(),
        ),
    ]
    lines = aligned(rows, [False, True, True, False])
    error = summary["certificate"]["max_error"]
    lines.append(f"compact network = gated network: largest difference {error:.1e} ({summary['certificate']['dtype']})")
    lines += [f"not verified: {what}" for what in summary["certificate"].get("refused", ())]
    if summary.get("agreement") is not None:
        lines.append(f"compact network ~ dense network: {Agreement(**summary['agreement'])}")
    lines.append(f"{summary['seconds']:.0f} s in all; files in {folder}")
    lines.append(f"look at it:  depl0 report {folder}")
    lines.append(f"use it:      depl0 export {folder} --to onnx")
    return "\n".join(lines)


def _metric_rows(metric: Metric, summary: dict[str, Any]) -> list[Row]:
    """Return the metric of both networks; where images were held out for choices, on these and on the test images."""
    held_out = summary.get("validation")
    parts = {metric.label: summary}
    if held_out is not None:
        parts = {f"validation {metric.label}": held_out, f"test {metric.label}": summary}
    return [
        _metric_row(metric, label, part["dense"][metric.name], part["compact"][metric.name])
        for label, part in parts.items()
    ]


def _metric_row(metric: Metric, label: str, dense: float | None, compact: float) -> Row:
    if dense is None:
        return label, "not trained", metric.show(compact), ""
    return label, metric.show(dense), metric.show(compact), metric.difference(dense, compact)


def check_deployable(recipe: Recipe) -> None:
    """Say before the training which packages are missing after it."""
    if recipe.deploy.then == "int8":
        check_installed("onnx", "onnxruntime", "onnxscript", purpose="for deploy.then = int8", extra="export")


def deploy(recipe: Recipe, run: Path, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Carry out what a recipe says of the time after its run; None: nothing."""
    if recipe.deploy.then != "int8":
        return None
    from depl0.app.deploy.variants import deploy_run  # torch.onnx is slow to import

    return deploy_run(run, resolve_paths(recipe, run), note)


def deployed_table(deployed: dict[str, Any], run: Path) -> str:
    """Return the table of all variants, and where the files are."""
    metric, runtime, variants = metric_in(deployed), deployed["runtime"], deployed["variants"]
    rows = [("", metric.label, "file", "latency, batch 1", "")]
    for variant in variants:
        score = variant["score"]
        rows.append(
            (
                variant["name"],
                MISSING if score is None else metric.show(score),
                f"{variant['bytes']:,} bytes",
                f"{variant['ms']:.3f} ± {variant['spread_ms']:.3f} ms",
                "" if variant is variants[0] else Speedup(**variant["speedup"]).in_words(),
            )
        )
    lines = aligned(rows, [False, True, True, True, False])
    threads = f"{runtime['threads']} thread{'s' if runtime['threads'] > 1 else ''}"
    lines.append(f"ONNX Runtime {runtime['onnxruntime']} on the CPU, {threads}, {runtime['clock']}, interleaved")
    if deployed["float_layers"]:
        lines.append(f"left in float, because they lose most: {', '.join(deployed['float_layers'])}")
    if not deployed["dense_is_trained"]:
        lines.append("the dense network's weights are not kept, so it is only timed")
    if deployed.get("round_to") == 1:
        lines.append("channels were kept as they come: --round-to auto and a larger --budget may take the same time")
    lines.append(f"deployed: {run / 'deployed' / 'compact.int8.onnx'}")
    return "\n".join(lines)
