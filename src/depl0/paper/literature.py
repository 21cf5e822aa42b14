"""The published numbers: the paper's tables and later methods' results, with the user's own runs as further rows."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from depl0.app.reports.run import Run, dig
from depl0.app.reports.show import duration, points, short
from depl0.app.table import Column, Table

TABLES = ("cifar10", "cifar100", "imagenet", "runtime", "ablation")
_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}
_MODELS = {"vgg16": "VGG16", "resnet50": "ResNet-50", "resnet56": "ResNet-56", "resnet20": "ResNet-20"}
_UNITS = {"M": 1e6, "B": 1e9}


class Printed(float):
    """A number that remembers how its source printed it: 94.0 is not 94."""

    text: str

    def __new__(cls, text: str) -> Printed:
        """Read ``195M`` or ``+0.1``."""
        unit = _UNITS.get(text[-1], 1.0)
        made = super().__new__(cls, round(float(text.rstrip("MB")) * unit, 6))
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text


def published(name: str) -> list[dict[str, Any]]:
    """Return the published rows of a table, numbers as numbers."""
    file = name if name in ("runtime", "ablation") else "results"
    text = resources.files("depl0.paper").joinpath("published", f"{file}.csv").read_text(encoding="utf-8")
    rows = [_typed(row) for row in csv.DictReader(text.splitlines())]
    return rows if file == name else [_completed(row) for row in rows if row.pop("table") == name]


def table(name: str, runs: Sequence[Run] = ()) -> Table:
    """Return a published table with runs as further rows, marked."""
    makers: dict[str, Callable[[Run], dict[str, Any]]] = {"runtime": _runtime_row, "ablation": _ablation_row}
    columns = {"runtime": _RUNTIME, "ablation": _ABLATION}.get(name, _RESULTS)
    rows = published(name)
    own = [makers.get(name, _result_row)(run) for run in runs]
    remarks = [f"{r['model']}, {r.get('method') or r.get('generator')}: {r['note']}." for r in rows if r.get("note")]
    marked = frozenset(range(len(rows), len(rows) + len(own)))
    note = " ".join([_NOTES[name], *remarks]).strip()
    return Table(_TITLES[name], columns, [*rows, *own], (note,) if note else (), marked)


def other_data(name: str, run: Run) -> str | None:
    """Return what a run was trained on, if that is plainly not what a table is about."""
    data = _data(run)
    wanted = _DATA.get(name)
    known = {*_DATA.values(), "digits", "mnist", "fashion-mnist"}
    return data if wanted is not None and data != wanted and data in known else None


def other_metric(name: str, run: Run) -> str | None:
    """Return what a run is judged by, if that is not accuracy, which these tables are about."""
    return run.metric.label if name != "runtime" and run.metric.name != "accuracy" else None


# -- published rows ------------------------------------------------------------------------------------------------


def _typed(row: dict[str, str]) -> dict[str, Any]:
    words = ("table", "data", "model", "method", "generator", "source", "cites", "note", "time_to_solution")
    typed: dict[str, Any] = {}
    for key, text in row.items():
        try:
            typed[key] = text or None if key in words else Printed(text) if text else None
        except ValueError:  # "fail to prune"
            typed[key] = text
    return typed


def _completed(row: dict[str, Any]) -> dict[str, Any]:
    """Bring "x % left" and "n times fewer" to the share that is cut, and compute a change that was not printed."""
    left, ratio = row.pop("flops_left"), row.pop("flops_ratio")
    if left is not None:
        row["flops_cut"] = Printed(f"{100 - left:.1f}")
    elif ratio is not None:
        row["flops_cut"] = Printed(f"{100 * (1 - 1 / ratio):.1f}")
    if row["change"] is None and row["before"] is not None:
        row["change"] = Printed(f"{row['after'] - row['before']:+.2f}".replace("+0.00", "0.00"))
    return row


# -- the user's rows -----------------------------------------------------------------------------------------------


def _data(run: Run) -> str:
    name = str(run.get("data") or dig(run.recipe, "data", "spec") or "?").partition(":")[0]
    return _DATA.get(name, name)


def _common(run: Run) -> dict[str, Any]:
    model = str(run.get("model") or dig(run.recipe, "model", "spec") or "?").removesuffix("_dep_l0")
    seed = run.get("seed")
    source = f"{run.label}" + (f", seed {seed}" if seed is not None else "")
    return {
        "data": _data(run),
        "model": _MODELS.get(model, model),
        "method": run.method,
        "source": source,
    }


def _cost_cells(run: Run) -> dict[str, Any]:
    cells: dict[str, Any] = {"after": run.get("compact", "accuracy")}
    for name, key in (("flops", "macs"), ("params", "params")):
        dense, compact = run.get("dense", key), run.get("compact", key)
        cells[name] = compact
        cells[f"{name}_cut"] = 100 * (1 - compact / dense) if dense and compact is not None else None
    return cells


def _result_row(run: Run) -> dict[str, Any]:
    before, after = run.get("dense", "accuracy"), run.get("compact", "accuracy")
    change = after - before if before is not None and after is not None else None
    return {**_common(run), "before": before, "change": change, **_cost_cells(run)}


def _ablation_row(run: Run) -> dict[str, Any]:
    method, generator = (dig(run.recipe, "gates", key) for key in ("method", "generator"))
    return {**_common(run), "generator": generator if method == "dep-l0" else method, **_cost_cells(run)}


def _runtime_row(run: Run) -> dict[str, Any]:
    converged = run.get("convergence", "epoch")
    search = [e for e in run.epochs if e["phase"] == "search" and e.get("seconds") is not None]
    before = [e["seconds"] for e in search if converged is None or e["epoch"] <= converged + 1]
    planned = [dig(run.recipe, phase, "epochs") or 0 for phase in ("search", "finetune")]
    return {
        **_common(run),
        "epochs": sum(planned),
        "epochs_to_convergence": converged,
        "epochs_to_settle": run.get("settled_epoch"),
        "seconds_per_epoch": sum(before) / len(before) if before else None,
        "time_to_solution": duration(run.get("seconds")) if run.get("seconds") is not None else None,
    }


# -- columns -------------------------------------------------------------------------------------------------------


def _number(form: Callable[[float], str]) -> Callable[[Any], str]:
    """Show a published number as it was printed, and the user's in this form."""

    def show(value: Any) -> str:
        text = str(value) if isinstance(value, (Printed, str)) else form(value)
        return text.replace("-", "−") if isinstance(value, float) else text

    return show


_accuracy, _percent = _number(lambda v: f"{v:.2f}"), _number(lambda v: f"{v:.1f}")
_WHERE = (Column("data", "Data set"), Column("model", "Model"))
_SOURCE = (Column("source", "Source"), Column("cites", "Cited as", hidden=True), Column("note", "Note", hidden=True))
_COST = (
    Column("flops", "FLOPs (MACs)", _number(short), is_number=True),
    Column("flops_cut", "cut %", _percent, is_number=True),
    Column("params", "Params", _number(short), is_number=True),
    Column("params_cut", "cut %", _percent, is_number=True),
)
_RESULTS = (
    *_WHERE,
    Column("method", "Method"),
    Column("before", "Acc. before", _accuracy, is_number=True),
    Column("after", "after", _accuracy, is_number=True),
    Column("change", "change", _number(points), is_number=True),
    *_COST,
    *_SOURCE,
)
_RUNTIME = (
    *_WHERE,
    Column("method", "Method"),
    Column("epochs", "Epochs", _number(lambda v: f"{v:g}"), is_number=True),
    Column("epochs_to_convergence", "Epochs BC", _number(lambda v: f"{v:g}"), is_number=True),
    Column("epochs_to_settle", "Epochs to settle", _number(lambda v: f"{v:g}"), is_number=True),
    Column("seconds_per_epoch", "Seconds per epoch BC", _percent, is_number=True),
    Column("time_to_solution", "TTS", is_number=True),
    *_SOURCE,
)
_ABLATION = (
    *_WHERE,
    Column("generator", "Generator"),
    Column("after", "Acc.", _accuracy, is_number=True),
    *_COST,
    *_SOURCE,
)
_DIFFER = "FLOPs are MACs (multiply-accumulates). Set-ups differ from source to source."
_TITLES = {
    "cifar10": "Pruning methods on CIFAR-10",
    "cifar100": "Pruning methods on CIFAR-100",
    "imagenet": "Pruning methods on ImageNet",
    "runtime": "Run time of Dep-L0 and L0-HC",
    "ablation": "Architectures of the gate generator",
}
_NOTES = {
    **dict.fromkeys(("cifar10", "cifar100", "imagenet", "ablation"), _DIFFER),
    "runtime": "BC: before convergence. Epochs to settle: until at most 1 % of the gates differ from the final set. "
    "TTS: time to solution. The paper's times are of Nvidia V100 GPUs.",
}
