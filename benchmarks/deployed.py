"""Measure dense and compact networks in float and int8 side by side, and write benchmarks/results/deployed.{md,json}.

python benchmarks/deployed.py --runs RUN … --speed resnet50 torchvision:mobilenet_v2 --json part.json
python benchmarks/deployed.py --collect benchmarks/results/deployed.json part.json … --out benchmarks/results

RUN is the folder of a finished ``depl0 prune`` that started from trained weights. Networks named with --speed are cut
untrained, to half of the MACs: only their speed and size mean something. Results of several machines stand side by
side, each with its processor.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from untrained import attach_untrained, cut_untrained

from depl0.app.deploy.int8 import open_images, test_score, training_images
from depl0.app.deploy.source import open_source
from depl0.app.models.spec import factory
from depl0.app.models.weights import load_weights
from depl0.app.recipes.recipe import task_of
from depl0.app.runs.folder import RunFolder, environment
from depl0.app.runs.paths import recipe_of_run
from depl0.export.int8 import quantize_onnx
from depl0.export.onnx import export_onnx
from depl0.host.inputs import ExampleInputs
from depl0.latency import interleave, processor_name, session_call, speedup, summarise

ORDER = ("dense, float", "compact, float", "dense, int8", "compact, int8")
POINTS, SHARE = 0.5, 0.27
"""the goals: points that compact int8 may lose against compact float, and its size as a share of compact's"""

VNNI = "a CPU with AVX-512 VNNI"
"""where results that do not name a processor were measured"""

INTRODUCTION = """# Deployed: float and int8, dense and compact

ONNX files, batch 1, in ONNX Runtime on one thread, while other programs kept all cores of the machine busy: single
figures are uncertain by some per cent, and the same network may take half as long again an hour later. So compare
within a table: all four files of a network take turns in one process, in an order that changes from round to round.
Milliseconds are medians of CPU time, ± half of the middle 50 %; "as fast" is the ratio of the medians, with its
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
    """Measure the variants of a finished run; the dense network is evaluated if its weights come from a file."""
    recipe = recipe_of_run(path / "recipe.toml")
    source, data, task = open_source(path), open_images(recipe), task_of(recipe)
    example, score = ExampleInputs(source.example, {}), test_score(data, task)
    dense = source.make().eval()
    trained = bool(recipe.model.weights) and load_weights(dense, recipe.model.weights, strict=False) is None
    files, scores, bits = {}, {}, 8
    for name, network, judged in (("dense", dense, trained), ("compact", source.module, True)):
        print(f"{recipe.model.spec}: {name}", flush=True)
        found = quantize_onnx(
            network, example, training_images(data), score=score if judged else None, max_drop=float("inf")
        )
        files[f"{name}, float"], files[f"{name}, int8"] = export_onnx(network, example), found.data
        scores[f"{name}, float"], scores[f"{name}, int8"] = found.before, found.after
        bits = found.weight_bits
    times = measure_files(files, source.example[0])
    summary = RunFolder(path).summary() or {}
    kept = ("macs_left", "params_left", "method", "seed", "steps", "epochs")
    variants = [{"name": name, "score": scores[name], "bytes": len(files[name]), **times[name]} for name in ORDER]
    about = {"network": recipe.model.spec, **{key: summary.get(key) for key in kept}}
    return {**about, "weight_bits": bits, "variants": variants}


def measure_files(
    files: dict[str, bytes], inputs: torch.Tensor, rounds: int = 300, seconds: float = 20.0
) -> dict[str, dict[str, Any]]:
    """Time ONNX files in ONNX Runtime on the CPU, interleaved, on the same input; milliseconds."""
    calls = {name: session_call(data, [inputs], torch.get_num_threads()) for name, data in files.items()}
    times = interleave(calls, torch.device("cpu"), rounds, seconds)
    found = {name: summarise(values) for name, values in times.items()}
    return {
        name: {
            "ms": 1000 * entry.median,
            "spread_ms": 1000 * entry.spread,
            "best_ms": 1000 * entry.best,
            "rounds": len(times[name]),
            "speedup": asdict(speedup(times[ORDER[0]], times[name])),
        }
        for name, entry in found.items()
    }


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


def _machine(result: dict[str, Any]) -> str:
    """Name the processor that a result was measured on."""
    about = result.get("runtime") or {}
    return f"{about['processor']}, {about['instructions']}" if "processor" in about else VNNI


def table(result: dict[str, Any]) -> list[str]:
    """Return the table of one network, and its conclusions about the goals."""
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
        layers = result.get("float_layers")
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
    """Run the measurements, or collect earlier ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--speed", nargs="*", default=[])
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--collect", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [of_run(path) for path in options.runs] + [of_speed(spec, options.image_size) for spec in options.speed]
    here = {"processor": processor_name(), "instructions": torch.backends.cpu.get_cpu_capability()}
    found = [{"runtime": here, **result} for result in found]
    if options.json is not None:
        options.json.write_text(json.dumps({"environment": environment(), "results": found}, indent=1) + "\n")
    if options.collect:
        parts = [json.loads(path.read_text()) for path in options.collect]
        results = [{"commit": part["environment"]["commit"], **result} for part in parts for result in part["results"]]
        env = parts[-1]["environment"]
        packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
        lines = [INTRODUCTION, *(line for result in results for line in table(result))]
        lines += [SINCE, f"Written by `benchmarks/deployed.py`; {packages}. All figures and commits: `deployed.json`."]
        (options.out / "deployed.md").write_text("\n".join(lines) + "\n")
        kept = {"environment": env, "results": results}
        (options.out / "deployed.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
