"""Measure dense and compact networks in float and int8 side by side, and write docs/results/deployed.md and .json.

python benchmarks/deployed.py --runs RUN … --speed resnet50 torchvision:mobilenet_v2 --json part.json
python benchmarks/deployed.py --pt2 RUN … --json part.json
python benchmarks/deployed.py --collect docs/results/deployed.json part.json … --out docs/results

RUN is the folder of a finished ``depl0 prune`` that started from trained weights. Networks named with --speed are cut
untrained, to half of the MACs: only their speed and size mean something. With --pt2 the compact network is written by
torchao. Results of several machines stand side by side, each with its processor.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
from pathlib import Path
from typing import Any

import torch

from depl0.app.deploy.int8 import open_images, test_score, training_images
from depl0.app.deploy.source import open_source
from depl0.app.deploy.variants import deploy_run, measure_files
from depl0.app.methods.untrained import attach_untrained, cut_untrained
from depl0.app.models.spec import factory
from depl0.app.recipes.recipe import task_of
from depl0.app.recipes.toml import read_recipe
from depl0.app.runs.folder import RunFolder, environment
from depl0.export.int8.quantize import quantize_onnx, quantize_pt2
from depl0.export.int8.torchao import OPERATORS
from depl0.export.onnx import export_onnx
from depl0.export.targets import Request
from depl0.export.torch_files import Pt2
from depl0.host.inputs import ExampleInputs
from depl0.latency.cache import processor_name
from depl0.latency.measure import interleave, summarise

ORDER = ("dense, float", "compact, float", "dense, int8", "compact, int8")
POINTS, SHARE = 0.5, 0.27
"""the goals: points that compact int8 may lose against compact float, and its size as a share of compact's"""

VNNI = "a CPU with AVX-512 VNNI"
"""where results that do not name a processor were measured"""

INTRODUCTION = """# Deployed: float and int8, dense and compact

ONNX files, batch 1, in ONNX Runtime on one thread, while other programs kept all cores of the machine busy: single
figures are uncertain by some per cent, and the same network may take half as long again an hour later. So compare
within a table: all four files of a network take turns in one process, in an order that changes from round to round.
Milliseconds are medians of processor time, ± half of the middle 50 %; "as fast" is the ratio of the medians, with its
95 % interval in brackets where the rounds were kept. Accuracy is that of the file on the whole test set of CIFAR-10
(10,000 images); one seed each. Ranges were measured on 512 training images (8 random ones for networks that are only
timed). How it is done: [../export.md](../export.md).

Two machines: one CPU with AVX-512 VNNI, and an AMD EPYC with AVX2 alone, on which int8 products of 8-bit weights
saturate, so that depl0 writes weights of 7 bits there.
"""

SINCE = """## What 8-bit weights do without VNNI

The compact ResNet-20 of the AVX2 table (`--quick`, 85.91 % in float) with weights of 8 bits, as depl0 wrote them
before: 83.61 % in int8, and 85.86 % with `conv1` left in float; the dense network 91.18 % (91.58 % where there is
VNNI). With 7 bits they are in the table above.

## Also seen

ResNet-20 was measured twice with VNNI. The first time attributes at their default were still in the int8 files
(compact 196,591 bytes, 0.271 of float); accuracies were the same, and compact int8 was 1.80x as fast as dense float.

ResNet-56 there, from its two files, without milliseconds: compact 91.57 % in float and 91.47 % in int8, no layer in
float; 2,301,794 and 612,374 bytes, 0.266.

Where the compact network keeps odd numbers of channels (both ResNets of CIFAR-10), int8 gains little or nothing over
the dense int8 file; ResNet-50 and MobileNetV2 keep multiples of 8 and gain. Multiples of 8 at equal time:
[rounding](rounding/README.md).
"""


def of_run(path: Path) -> dict[str, Any]:
    """Measure the variants of a finished run."""
    recipe = read_recipe(path / "recipe.toml")
    summary = RunFolder(path).summary() or {}
    found = deploy_run(path, recipe, print)
    kept = ("macs_left", "params_left", "method", "seed", "steps", "epochs")
    return {"network": recipe.model.spec, **{key: summary.get(key) for key in kept}, **found}


def of_speed(spec: str, side: int) -> dict[str, Any]:
    """Measure the variants of a network that is cut untrained."""
    torch.manual_seed(0)
    example = torch.randn(1, 3, side, side)
    dense = factory(spec, 1000, 3, side)().eval()
    compact, _ = cut_untrained(attach_untrained(dense, example, "all"), 0.5, "macs", 8)
    images = torch.randn(8, 3, side, side, generator=torch.Generator().manual_seed(0))
    files = {}
    for name, network in (("dense", dense), ("compact", compact.eval())):
        print(f"{spec}: {name}", flush=True)
        files[f"{name}, float"] = export_onnx(network, example)
        files[f"{name}, int8"] = quantize_onnx(network, example, [images]).data
    times = measure_files(files, example, rounds=60, seconds=60.0)
    variants = [{"name": name, "score": None, "bytes": len(files[name]), **times[name]} for name in ORDER]
    return {"network": spec, "image_size": side, "macs_left": 0.5, "round_to": 8, "variants": variants}


def of_pt2(path: Path) -> dict[str, Any]:
    """Measure the compact network of a run as ``.pt2`` in float and int8, as loaded: that is, not compiled."""
    recipe = read_recipe(path / "recipe.toml")
    source, data, task = open_source(path), open_images(recipe), task_of(recipe)
    example = ExampleInputs(source.example, {})
    print(f"{recipe.model.spec}: .pt2", flush=True)
    found = quantize_pt2(
        source.module, example, training_images(data), score=test_score(data, task), max_drop=100.0, note=print
    )
    files = {"compact, float": Pt2().encode(Request(source.module, source.example)), "compact, int8": found.data}
    importlib.import_module(OPERATORS)
    networks = {name: torch.export.load(io.BytesIO(file)).module() for name, file in files.items()}
    with torch.inference_mode():
        calls = {name: (lambda n=network: n(*source.example)) for name, network in networks.items()}  # type: ignore[misc]
        times = interleave(calls, torch.device("cpu"), 60, 30.0)
    scores = {"compact, float": found.before, "compact, int8": found.after}
    variants = [
        {
            "name": name,
            "score": scores[name],
            "bytes": len(files[name]),
            "ms": 1000 * summarise(times[name]).median,
            "spread_ms": 1000 * summarise(times[name]).spread,
            "rounds": len(times[name]),
        }
        for name in files
    ]
    summary = RunFolder(path).summary() or {}
    about = {"network": recipe.model.spec, "macs_left": summary.get("macs_left"), "seed": summary.get("seed")}
    return {**about, "format": "pt2", "float_layers": list(found.in_float), "variants": variants}


def pt2_table(results: list[dict[str, Any]]) -> list[str]:
    """Return the table of ``.pt2`` files."""
    lines = [
        "## `.pt2` by torchao",
        "",
        "Compact networks, as `torch.export.load` gives them, not compiled: int8 is then",
    ]
    lines += [
        "computed in floats that are rounded. The graph is part of the file. Compiled: [../export.md](../export.md).",
        "",
    ]
    lines += ["| | | accuracy | file, bytes | of float | ms | processor |", "|---|---|---:|---:|---:|---:|---|"]
    for result in results:
        first = result["variants"][0]["bytes"]
        for v in result["variants"]:
            cells = [
                result["network"],
                v["name"],
                f"{v['score']:.2f} %",
                f"{v['bytes']:,}",
                f"{v['bytes'] / first:.3f}",
            ]
            cells += [f"{v['ms']:.2f} ± {v['spread_ms']:.2f}", _machine(result)]
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _machine(result: dict[str, Any]) -> str:
    """Name the processor that a result was measured on."""
    about = result.get("runtime") or {}
    return f"{about['processor']}, {about['instructions']}" if "processor" in about else VNNI


def table(result: dict[str, Any]) -> list[str]:
    """Return the table of one network, and what it says about the goals."""
    rows = {variant["name"]: variant for variant in result["variants"]}
    first = rows["dense, float"]["ms"]
    trained = rows["compact, int8"]["score"] is not None
    left = f"{result['macs_left']:.1%} of the MACs" if trained else "cut to at most half of the MACs"
    title = f"{result['network']}, {left}: {_machine(result)}"
    lines = [f"## {title}", ""]
    lines += ["| | accuracy | file, bytes | ms | as fast as dense float |", "|---|---:|---:|---:|---:|"]
    for name in ORDER:
        v = rows[name]
        score = "–" if v["score"] is None else f"{v['score']:.2f} %"
        time = f"{v['ms']:.3f} ± {v['spread_ms']:.3f}"
        ratio, kept = first / v["ms"], v.get("speedup")
        is_same = kept is not None and abs(kept["ratio"] - ratio) < 1e-6  # older files have the median of ratios
        known = f" ({kept['low']:.2f} to {kept['high']:.2f})" if is_same and name != ORDER[0] else ""
        lines.append(f"| {name} | {score} | {v['bytes']:,} | {time} | {ratio:.2f}x{known} |")
    small, large, middle = rows["compact, int8"], rows["compact, float"], rows["dense, int8"]
    share = small["bytes"] / large["bytes"]
    lines += ["", f"- compact int8 has {share:.3f} of the size of compact float {_goal(share <= SHARE, SHARE)}."]
    faster = large["ms"] / small["ms"], middle["ms"] / small["ms"]
    lines.append(f"- compact int8 is {faster[0]:.2f}x as fast as compact float and {faster[1]:.2f}x as dense int8.")
    if trained:
        lost = large["score"] - small["score"]
        lines.append(f"- compact int8 loses {lost:.2f} points against compact float {_goal(lost <= POINTS, POINTS)}.")
        lines.append(f"- made by {result['method']}, {result['steps']} steps of fine-tuning, seed {result['seed']}.")
        layers = result["float_layers"]
        bits = f"; weights of {result['weight_bits']} bits" if "weight_bits" in result else ""
        rounds = f"; {rows['dense, float']['rounds']} rounds" if "rounds" in rows["dense, float"] else ""
        lines.append(f"- layers left in float: {', '.join(layers) if layers else 'none'}{bits}{rounds}.")
    else:
        lines.append(
            f"- images of {result['image_size']}x{result['image_size']}; multiples of 8 channels; not trained."
        )
    return [*lines, ""]


def _goal(reached: bool, goal: float) -> str:
    return f"(goal at most {goal}: {'reached' if reached else 'not reached'})"


def main() -> None:
    """Measure, or collect what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--speed", nargs="*", default=[])
    parser.add_argument("--pt2", type=Path, nargs="*", default=[])
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--collect", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [of_run(path) for path in options.runs] + [of_speed(spec, options.image_size) for spec in options.speed]
    found += [of_pt2(path) for path in options.pt2]
    here = {"processor": processor_name(), "instructions": torch.backends.cpu.get_cpu_capability()}
    found = [{"runtime": here, **result} for result in found]
    if options.json is not None:
        options.json.write_text(json.dumps({"environment": environment(), "results": found}, indent=1) + "\n")
    if options.collect:
        parts = [json.loads(path.read_text()) for path in options.collect]
        results = [{"commit": part["environment"]["commit"], **result} for part in parts for result in part["results"]]
        by_torchao = [result for result in results if result.get("format") == "pt2"]
        env = parts[-1]["environment"]
        packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
        lines = [INTRODUCTION, *(line for result in results if result not in by_torchao for line in table(result))]
        lines += pt2_table(by_torchao) if by_torchao else []
        lines += [SINCE, f"Written by `benchmarks/deployed.py`; {packages}. All figures and commits: `deployed.json`."]
        (options.out / "deployed.md").write_text("\n".join(lines) + "\n")
        kept = {"environment": env, "results": results}
        (options.out / "deployed.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
