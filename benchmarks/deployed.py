"""Measure dense and compact networks in float and int8 side by side, and write docs/results/deployed.md and .json.

python benchmarks/deployed.py --runs RUN … --speed resnet50 torchvision:mobilenet_v2 --json part.json
python benchmarks/deployed.py --collect part.json … --out docs/results

RUN is the folder of a finished ``depl0 prune`` that started from trained weights. Networks named with --speed are cut
untrained, to half of the MACs: only their speed and size mean something.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from depl0.export.int8.call import quantize_onnx
from depl0.export.int8.variants import deploy_run, measure_files
from depl0.export.onnx import export_onnx
from depl0.methods.untrained import attach_untrained, cut_untrained
from depl0.models.spec import factory
from depl0.recipes.toml import read_recipe
from depl0.runs.folder import RunFolder, environment

ORDER = ("dense, float", "compact, float", "dense, int8", "compact, int8")
POINTS, SHARE = 0.5, 0.27
"""the goals: points that compact int8 may lose against compact float, and its size as a share of compact's"""

INTRODUCTION = """# Deployed: float and int8, dense and compact

ONNX files, batch 1, in ONNX Runtime on one thread of a shared CPU with AVX-512 VNNI, while other programs kept both of
its cores busy: single figures are uncertain by some per cent. All four files of a network take turns in one process, in
an order that changes from round to round; milliseconds are medians of processor time, ± half of the middle 50 %; how
many times as fast compares the fastest fifth of the rounds. Accuracy is that of the file on the whole test set of
CIFAR-10 (10,000 images); one seed each. Ranges were measured on 512 training images (8 random ones for networks that
are only timed). How it is done: [../export.md](../export.md).
"""

SINCE = """The compact ResNet-20 keeps odd numbers of channels, and in int8 it is slower than the dense one; the other
two keep multiples of 8 and gain. That the odd numbers are the cause was not tested by itself.

ResNet-20 was measured twice. The first time attributes at their default were still in the int8 files (compact 196,591
bytes, 0.271 of float); accuracies were the same, and compact int8 was 1.80x as fast as dense float.

ResNet-56, compact (`depl0 prune resnet56-cifar10 --quick`, 50.0% of the MACs, no training): 91.57 % in float and
91.47 % in int8, no layer in float; 2,301,794 and 612,374 bytes, 0.266. Both goals are reached. Its dense network has
93.28 % in float; dense int8 and milliseconds have not been measured yet. (From its two files; not in `deployed.json`.)
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


def table(result: dict[str, Any]) -> list[str]:
    """Return the table of one network, and what it says about the goals."""
    rows = {variant["name"]: variant for variant in result["variants"]}
    first = rows["dense, float"]["best_ms"]
    trained = rows["compact, int8"]["score"] is not None
    left = f"{result['macs_left']:.1%} of the MACs" if trained else "cut to at most half of the MACs"
    title = f"{result['network']}, {left}"
    lines = [f"## {title}", ""]
    lines += ["| | accuracy | file, bytes | ms | as fast as dense float |", "|---|---:|---:|---:|---:|"]
    for name in ORDER:
        v = rows[name]
        score = "–" if v["score"] is None else f"{v['score']:.2f} %"
        time = f"{v['ms']:.3f} ± {v['spread_ms']:.3f}"
        lines.append(f"| {name} | {score} | {v['bytes']:,} | {time} | {first / v['best_ms']:.2f}x |")
    small, large, middle = rows["compact, int8"], rows["compact, float"], rows["dense, int8"]
    share = small["bytes"] / large["bytes"]
    lines += ["", f"- compact int8 has {share:.3f} of the size of compact float {_goal(share <= SHARE, SHARE)}."]
    faster = large["best_ms"] / small["best_ms"], middle["best_ms"] / small["best_ms"]
    lines.append(f"- compact int8 is {faster[0]:.2f}x as fast as compact float and {faster[1]:.2f}x as dense int8.")
    if trained:
        lost = large["score"] - small["score"]
        lines.append(f"- compact int8 loses {lost:.2f} points against compact float {_goal(lost <= POINTS, POINTS)}.")
        lines.append(f"- made by {result['method']}, {result['steps']} steps of fine-tuning, seed {result['seed']}.")
        layers = result["float_layers"]
        lines.append(f"- layers left in float: {', '.join(layers) if layers else 'none'}.")
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
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--collect", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [of_run(path) for path in options.runs] + [of_speed(spec, options.image_size) for spec in options.speed]
    if options.json is not None:
        options.json.write_text(json.dumps({"environment": environment(), "results": found}, indent=1) + "\n")
    if options.collect:
        parts = [json.loads(path.read_text()) for path in options.collect]
        results = [{**result, "commit": part["environment"]["commit"]} for part in parts for result in part["results"]]
        env = parts[-1]["environment"]
        packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
        lines = [INTRODUCTION, *(line for result in results for line in table(result))]
        lines += [SINCE, f"Written by `benchmarks/deployed.py`; {packages}. All figures and commits: `deployed.json`."]
        (options.out / "deployed.md").write_text("\n".join(lines) + "\n")
        kept = {"environment": env, "results": results}
        (options.out / "deployed.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
