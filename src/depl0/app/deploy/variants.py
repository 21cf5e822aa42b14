"""Dense and compact, float and int8, side by side: what each is worth, how large its file is, and how fast it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from depl0._util.io import read_json, write_whole
from depl0._util.optional import require
from depl0.app.deploy.int8 import Options, open_images, test_score, training_images, write_int8
from depl0.app.deploy.source import Source, open_source
from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.weights import load_weights
from depl0.export.checked import write_checked
from depl0.export.int8.quantize import Note, Score, quantize_onnx
from depl0.export.int8.quantizer import calibration_inputs
from depl0.export.onnx import Onnx, export_onnx
from depl0.export.targets import Request
from depl0.host.inputs import ExampleInputs
from depl0.latency.backends import session_call
from depl0.latency.cache import processor_name
from depl0.latency.measure import interleave, speedup, summarise

FILE = "deployed.json"
FOLDER = "deployed"
ROUNDS, SECONDS = 300, 20.0
DENSE = "dense, float"
"""what all others are compared with"""


def deploy_run(run: Path, recipe: Recipe, note: Note = lambda text: None) -> dict[str, Any]:
    """Write the int8 file of a finished run and measure all variants; return what ``deployed.json`` then holds.

    Where that file is there already, it is read. An int8 file that loses too much is refused, and nothing is written.
    """
    table = run / FILE
    if table.is_file():
        return dict(read_json(table))
    source = open_source(run)
    data, task = open_images(recipe), task_of(recipe)
    score = test_score(data, task)
    options = Options(recipe.deploy.max_drop, recipe.deploy.calibration_images)
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    note("writing compact.onnx and compact.int8.onnx")
    try:
        small = write_int8(source, folder / "compact.int8.onnx", data, task, options, note)
    except BaseException:
        with suppress(OSError):  # files of an earlier time are in it
            folder.rmdir()
        raise
    write_checked(Onnx(), Request(source.module, source.example, source.metadata), folder / "compact.onnx")
    files = {"compact, float": (folder / "compact.onnx").read_bytes(), "compact, int8": small.quantized.data}
    scores = {"compact, float": small.quantized.before, "compact, int8": small.quantized.after}
    note("measuring the dense network in float and int8")
    dense = _dense(source, recipe, calibration_inputs(training_images(data), options.images), score, files, scores)
    times = measure_files(files, source.example[0])
    order = ("dense, float", "compact, float", "dense, int8", "compact, int8")
    found = {
        "metric": task.metric.to_dict(),
        "runtime": _runtime(),
        "float_layers": list(small.quantized.in_float),
        "weight_bits": small.quantized.weight_bits,
        "dense_is_trained": dense,
        "round_to": source.summary.get("round_to"),
        "variants": [
            {"name": name, "score": scores.get(name), "bytes": len(files[name]), **times[name]} for name in order
        ],
    }
    write_whole(table, (json.dumps(found, indent=2) + "\n").encode())
    return found


def _dense(
    source: Source,
    recipe: Recipe,
    images: list[tuple[torch.Tensor, ...]],
    score: Score,
    files: dict[str, bytes],
    scores: dict[str, float | None],
) -> bool:
    """Add the dense network's two files; their scores only where its trained weights are at hand."""
    network = source.make().eval()
    trained = False
    if recipe.model.weights:  # a new head has never been trained for this task
        trained = load_weights(network, recipe.model.weights, strict=recipe.model.strict) is None
    example = ExampleInputs(source.example, {})
    files["dense, float"] = export_onnx(network, example)
    found = quantize_onnx(network, example, images, score=score if trained else None, max_drop=float("inf"))
    files["dense, int8"] = found.data
    scores["dense, float"], scores["dense, int8"] = found.before, found.after
    return trained


def measure_files(
    files: Mapping[str, bytes], inputs: torch.Tensor, rounds: int = ROUNDS, seconds: float = SECONDS
) -> dict[str, dict[str, Any]]:
    """Time ONNX files in ONNX Runtime on the CPU, interleaved, on the same input; milliseconds.

    Each has how many times as fast it is as the dense network in float, with the interval that the rounds give.
    """
    calls = {name: session_call(data, inputs, torch.get_num_threads()) for name, data in files.items()}
    times = interleave(calls, torch.device("cpu"), rounds, seconds)
    found = {name: summarise(values) for name, values in times.items()}
    return {
        name: {
            "ms": 1000 * entry.median,
            "spread_ms": 1000 * entry.spread,
            "best_ms": 1000 * entry.best,
            "rounds": len(times[name]),
            "speedup": asdict(speedup(times[DENSE], times[name])),
        }
        for name, entry in found.items()
    }


def _runtime() -> dict[str, Any]:
    runtime = require("onnxruntime", "onnxruntime", "to run ONNX files", extra="export")
    return {
        "onnxruntime": runtime.__version__,
        "threads": torch.get_num_threads(),
        "batch": 1,
        "clock": "processor time" if torch.get_num_threads() == 1 else "wall clock",
        "processor": processor_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
