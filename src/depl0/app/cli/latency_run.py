"""What ``depl0 latency`` measures and prints: a model, a run or a file, timed side by side on one device."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util import trust
from depl0._util.io import MAX_VALUES, read_bounded
from depl0.app.methods.untrained import attach_untrained, cut_untrained
from depl0.app.models.spec import factory, image_size
from depl0.app.runs.folder import find_compact
from depl0.app.runs.paths import recipe_of_run
from depl0.app.table import aligned
from depl0.app.training.setup import open_data_for
from depl0.costs.count import cost
from depl0.errors import InputError
from depl0.gates.threshold import check_share, checked_kind
from depl0.host.network import first_line
from depl0.latency.backends import Call, Omitted, Skipped, Timing, compare, open_session, time_calls
from depl0.latency.backends import built_small as make_built_small
from depl0.latency.machine import machine
from depl0.surgery.files import load

WORDS = ("network", "backend")
"""columns of the table that are not figures"""


@dataclass(frozen=True)
class Sizes:
    """What the command line says of the images; 0 for a size that it leaves out."""

    image_size: int
    channels: int
    classes: int


@dataclass(frozen=True)
class Subject:
    """Networks to time side by side, the dense one first."""

    networks: dict[str, nn.Module]
    image_shape: tuple[int, ...]

    def costs(self) -> dict[str, Any]:
        """Return parameters and MACs of every network for one image, and their shares of the dense ones."""
        counted = {name: cost(network, self._example(network)) for name, network in self.networks.items()}
        dense = next(iter(counted.values()))
        return {
            name: {
                "params": found.params,
                "macs": found.macs,
                "params_share": found.params / max(dense.params, 1),
                "macs_share": found.macs / max(dense.macs, 1),
            }
            for name, found in counted.items()
        }

    def _example(self, network: nn.Module) -> Tensor:
        device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
        return torch.zeros(1, *self.image_shape, device=device)


def model_subject(
    spec: str, sizes: Sizes, budget: float | None, of: str, round_to: list[int], groups: str, built_small: bool
) -> Subject:
    """Return a model as it is; with a budget also cut to it, untrained, once for every multiple of channels."""
    side = sizes.image_size or (224 if ":" in spec or spec == "resnet50" else 32)
    shape = (sizes.channels, side, side)
    dense = factory(spec, sizes.classes, sizes.channels, side)().eval()
    networks: dict[str, nn.Module] = {"dense": dense}
    if budget is None:
        if built_small:
            raise InputError("--built-small needs a compact network.", hint="say --budget, or name a run.")
        return Subject(networks, shape)
    kind = checked_kind(of)
    check_share(budget)
    gated = attach_untrained(dense, torch.randn(1, *shape), groups)
    for number in round_to:
        name = "compact" if number == 1 else f"compact, multiples of {number}"
        print(f"cutting to {budget:g} of the {of}: {name} …", file=sys.stderr)
        networks[name], _ = cut_untrained(gated, budget, kind, number)
        if built_small:
            networks[f"built small{name.removeprefix('compact')}"] = make_built_small(networks[name])
    return Subject(networks, shape)


def run_subject(path: Path, model: str | None, sizes: Sizes, built_small: bool) -> Subject:
    """Return the compact network of a folder, after its dense form."""
    folder, recipe_file = find_compact(path)
    if model is not None:
        shape = (sizes.channels, *[sizes.image_size or 32] * 2)
        make = factory(model, sizes.classes, sizes.channels, shape[1])
    elif recipe_file is not None:
        recipe = recipe_of_run(recipe_file)
        info = open_data_for(recipe, "cpu").info
        if info.image_shape is None:
            raise InputError(f"latency needs a network whose input is one image; {path} has the inputs {info.shape}.")
        shape = (info.image_shape[0], *(([sizes.image_size] * 2) if sizes.image_size else info.image_shape[1:]))
        make = factory(recipe.model.spec, info.num_outputs, info.image_shape[0], image_size(*info.image_shape[1:]))
    else:
        raise InputError(
            f"{path} is a compact network without its run.",
            hint="say --model, --image-size, --channels and --classes, as they were in the run.",
        )
    networks: dict[str, nn.Module] = {"dense": make().eval(), "compact": load(folder, make).eval()}
    if built_small:
        networks["built small"] = make_built_small(networks["compact"])
    return Subject(networks, shape)


def file_subject(
    path: Path, batches: list[int], device: torch.device, seconds: float
) -> tuple[list[Timing], list[Omitted]]:
    """Time an exported file on inputs of the shape that it asks for."""
    if not path.is_file():
        raise InputError(f"{path} does not exist.", hint="depl0 export writes .onnx and .pt2 files.")
    backend = "onnxruntime" if path.suffix == ".onnx" else "pt2"
    open_file = _open_onnx if path.suffix == ".onnx" else _open_pt2
    timings: list[Timing] = []
    omitted: list[Omitted] = []
    try:
        fixed, call_for = open_file(path, device)
    except Skipped as skipped:
        return [], [Omitted(backend, batch, str(skipped)) for batch in batches]
    for batch in batches:
        if fixed not in (None, batch):
            omitted.append(
                Omitted(backend, batch, f"the file is for batches of {fixed} (export with --dynamic-batch).")
            )
            continue
        with torch.inference_mode():
            timings += time_calls({path.name: call_for(batch)}, backend, batch, device, 50, seconds)
    return timings, omitted


def _open_onnx(path: Path, device: torch.device) -> tuple[int | None, Any]:
    try:
        session = open_session(path, device, torch.get_num_threads())
    except Skipped:
        raise
    except Exception as error:  # onnxruntime has many error classes, and no public base of its own
        raise InputError(f"{path} cannot be read as ONNX: {error}.", hint="export it again.") from error
    if len(session.get_inputs()) != 1:
        raise InputError(f"{path} takes {len(session.get_inputs())} inputs; only networks with one input are timed.")
    wanted = session.get_inputs()[0]
    first, *rest = wanted.shape or [None]
    if not rest or not all(isinstance(size, int) and size > 0 for size in rest) or wanted.type != "tensor(float)":
        raise InputError(
            f"{path} takes {wanted.type} of shape {wanted.shape}; only float images of one size are timed."
        )

    def call_for(batch: int) -> Call:
        feed = {wanted.name: torch.randn(batch, *rest).numpy()}

        def call() -> Any:
            try:
                return session.run(None, feed)
            except Exception as error:
                raise InputError(
                    f"{path} cannot be run: {first_line(error)}", hint="use a smaller --batch, or export it again."
                ) from error

        return call

    return first if isinstance(first, int) else None, call_for


def _open_pt2(path: Path, device: torch.device) -> tuple[int | None, Any]:
    data = read_bounded(path, MAX_VALUES)
    trust.check(
        trust.file_identity(data), f"{path} was not exported here, and reading a .pt2 file runs the code in it."
    )
    try:
        program = torch.export.load(io.BytesIO(data))
    except Exception as error:  # a damaged archive fails in many ways
        raise InputError(f"{path} cannot be read as a .pt2 file: {error}.", hint="export it again.") from error
    found = [node.meta["val"] for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    if len(found) != 1 or not isinstance(found[0], Tensor):
        raise InputError(f"{path} takes {len(found)} inputs; only networks with one tensor as input are timed.")
    first, *rest = found[0].shape
    module: Any = program.module().to(device)

    def call_for(batch: int) -> Call:
        inputs = torch.randn(batch, *map(int, rest), device=device)
        return lambda: module(inputs)

    return first if isinstance(first, int) else None, call_for


def measured(
    name: str, subject: Subject | None, backends: list[str], batches: list[int], device: torch.device, seconds: float
) -> dict[str, Any]:
    """Return what was measured of some networks; without them, of the file of this name."""
    networks: dict[str, Any] = {}
    if subject is None:
        timings, omitted = file_subject(Path(name), batches, device, seconds)
    else:
        networks, timings, omitted = _compare(subject, backends, batches, device, seconds)
    return {
        "subject": name,
        **machine(device),
        "clock": "processor time" if device.type == "cpu" and torch.get_num_threads() == 1 else "wall clock",
        "networks": networks,
        "timings": [_entry(timing) for timing in timings],
        "skipped": [dataclasses.asdict(entry) for entry in omitted],
    }


def _compare(
    subject: Subject, backends: list[str], batches: list[int], device: torch.device, seconds: float
) -> tuple[dict[str, Any], list[Timing], list[Omitted]]:
    networks = {name: network.to(device) for name, network in subject.networks.items()}
    timings, omitted = compare(
        networks,
        backends,
        batches,
        lambda size: torch.randn(size, *subject.image_shape, generator=torch.Generator().manual_seed(0)).to(device),
        _to_onnx,
        torch.get_num_threads(),
        seconds=seconds,
    )
    return subject.costs(), timings, omitted


def _to_onnx(network: nn.Module, inputs: Tensor) -> bytes:
    from depl0.export.onnx import export_onnx  # torch.onnx is slow to import

    print(f"exporting for ONNX Runtime, batch {len(inputs)} …", file=sys.stderr)
    with torch.inference_mode(False):  # recording a graph needs ordinary tensors
        return export_onnx(network, inputs.clone())


def _entry(timing: Timing) -> dict[str, Any]:
    return {
        "backend": timing.backend,
        "batch": timing.batch,
        "network": timing.network,
        "median_ms": 1000 * timing.median,
        "spread_ms": 1000 * timing.spread,
        "best_ms": 1000 * timing.best,
        "rounds": timing.rounds,
        "speedup": None if timing.speedup is None else dataclasses.asdict(timing.speedup),
    }


def device_called(name: str) -> torch.device:
    """Return a device, or refuse what is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device must be cpu or cuda, got {name!r} instead.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device is cuda, but torch sees no CUDA device.", hint="use --device cpu.")
    return device


@contextmanager
def threads_set(number: int) -> Iterator[None]:
    """Let torch use so many threads meanwhile; 0: as many as it is set to."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def latency_table(result: dict[str, Any]) -> str:
    """Return sizes, times and speed-ups as text."""
    threads = result["threads"]
    lines = [
        f"{result['subject']} on {result['device']}, {threads} thread{'s' if threads > 1 else ''}, "
        f"torch {result['torch']}; {result['clock']}, interleaved"
    ]
    networks = result["networks"]
    if networks:
        rows = [["network", "parameters", "MACs", "MACs left", "fewer MACs"]]
        for name, sizes in networks.items():
            share = sizes["macs_share"]
            fewer = "" if share == 1 else f"{1 / share:.2f}x"
            rows.append([name, f"{sizes['params']:,}", f"{sizes['macs']:,}", f"{share:.1%}", fewer])
        lines += ["", *aligned(rows, [title not in WORDS for title in rows[0]])]
    if result["timings"]:
        rows = [["backend", "batch", "network", "ms", "±", "best", "rounds", "as fast"]]
        for entry in result["timings"]:
            rows.append(
                [
                    entry["backend"],
                    str(entry["batch"]),
                    entry["network"],
                    f"{entry['median_ms']:.3f}",
                    f"{entry['spread_ms']:.3f}",
                    f"{entry['best_ms']:.3f}",
                    str(entry["rounds"]),
                    _faster(entry),
                ]
            )
        lines += ["", *aligned(rows, [title not in WORDS for title in rows[0]])]
        lines.append("ms: median ± half of the middle 50 %; best: mean of the fastest fifth")
        if len(result["timings"]) > 1:
            lines.append("as fast: ratio of the medians, in brackets its 95 % interval")
    if result["skipped"]:
        lines.append("")
        lines += [
            f"skipped {entry['backend']}, batch {entry['batch']}: {entry['reason']}" for entry in result["skipped"]
        ]
    return "\n".join(lines)


def _faster(entry: dict[str, Any]) -> str:
    found = entry["speedup"]
    if found is None:
        return ""
    interval = f" ({found['low']:.2f} to {found['high']:.2f})" if "low" in found else ""  # older files have none
    return f"{found['ratio']:.2f}x{interval}"
