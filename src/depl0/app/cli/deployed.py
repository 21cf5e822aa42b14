"""The end of ``depl0 prune --then int8``: the deployed file, and one table of all variants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from depl0._util.optional import check_installed
from depl0.app.recipes.recipe import Recipe
from depl0.app.table import MISSING, aligned
from depl0.app.tasks import metric_in
from depl0.latency.measure import Speedup


def check_deployable(recipe: Recipe) -> None:
    """Say before the training which packages are missing after it."""
    if recipe.deploy.then == "int8":
        check_installed("onnx", "onnxruntime", "onnxscript", purpose="for --then int8", extra="export")


def deploy(recipe: Recipe, run: Path, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Carry out what a recipe says of the time after its run; None: nothing."""
    if recipe.deploy.then != "int8":
        return None
    from depl0.app.deploy.variants import deploy_run  # torch.onnx is slow to import

    return deploy_run(run, recipe, note)


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
