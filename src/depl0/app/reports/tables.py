"""The tables of a report, and how their numbers are formatted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import EngFormatter

from depl0.app.reports.run import Run
from depl0.app.table import MISSING, Column, Table
from depl0.app.tasks import ACCURACY, Metric
from depl0.latency import Speedup

count = "{:,.0f}".format


def short(value: float) -> str:
    """Shorten a large number.

    >>> short(69_100_000), short(2.58e9), short(640)
    ('69.1M', '2.58B', '640')
    """
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def file_size(value: float) -> str:
    """Format a number of bytes with a suitable unit.

    >>> file_size(263_400), file_size(102_200_000)
    ('263.4 kB', '102.2 MB')
    """
    return EngFormatter(places=1).format_eng(value) + "B"


def fraction(value: float) -> str:
    """Format a fraction in percent.

    >>> fraction(0.4986)
    '49.9 %'
    """
    return f"{100 * value:.1f} %"


def change(metric: Metric, value: float) -> str:
    """Format a change of a metric, with its sign and without its unit.

    >>> change(Metric("accuracy", "%"), -0.1), change(Metric("rmse"), 0.0125)
    ('−0.10', '+0.0125')
    """
    return metric.number(value, sign=True).replace("-", "−")


def milliseconds(value: float) -> str:
    """Format a latency.

    >>> milliseconds(3.285), milliseconds(1234.5)
    ('3.29 ms', '1,234 ms')
    """
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def duration(seconds: float) -> str:
    """Format the duration of a run.

    >>> duration(42.1), duration(7440), duration(214_200)
    ('42 s', '124 min', '59.5 h')
    """
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 10 * 3600 else f"{seconds / 3600:.1f} h"


_QUANTITIES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("MACs", "macs", count),
    ("parameters", "params", count),
    ("file size", "file_bytes", file_size),
    ("latency, batch 1", "latency_ms", milliseconds),
    ("latency, batch 32", "latency_ms_32", milliseconds),
)


def _number(key: str, title: str, show: Callable[[Any], str] = str) -> Column:
    return Column(key, title, show, is_number=True)


def _words(*keys: str) -> list[Column]:
    return [Column(key, key) for key in keys]


def _difference(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None else None


def titled(metric: Metric, name: str) -> str:
    """Return the name of a metric, with its direction if lower is better."""
    return name if metric.higher_is_better else f"{name} ({metric.direction})"


def dense_to_compact(run: Run) -> Table:
    """Return the metric and the cost of the dense and the compact network."""
    metric, rows = run.metric, []
    for split in ["test"] if run.split == "test" else ["validation", "test"]:
        name = titled(metric, metric.label if run.split == "test" else f"{split} {metric.label}")
        dense, compact = run.value("dense", split), run.value("compact", split)
        rows.append(_compared(name, metric.show, dense, compact, _with_unit(metric, dense, compact)))
    for name, key, show in _QUANTITIES:
        dense, compact = run.get("dense", key), run.get("compact", key)
        if key.startswith("latency"):
            left = faster(run, int(name.rpartition(" ")[2]))
        else:
            left = f"{fraction(compact / dense)} left" if dense and compact is not None else None
        rows.append(_compared(name, show, dense, compact, left))
    columns = (Column("quantity", ""), *(_number(title, title) for title in ("dense", "compact", "change")))
    return Table(f"{run.label}: dense → compact", columns, rows)


def _with_unit(metric: Metric, dense: float | None, compact: float | None) -> str | None:
    return None if dense is None or compact is None else metric.difference(dense, compact).replace("-", "−")


def _compared(
    name: str, show: Callable[[float], str], dense: float | None, compact: float | None, change: str | None
) -> dict[str, Any]:
    cells = {title: None if value is None else show(value) for title, value in (("dense", dense), ("compact", compact))}
    return {"quantity": name, **cells, "change": change}


def faster(run: Run, batch: int = 1) -> str | None:
    """Format the speed-up of the compact network with its interval; None if it was not timed."""
    found = run.get("speedup", str(batch))
    return None if found is None else Speedup(**found).in_words()


def headline(run: Run) -> list[tuple[str, str, str]]:
    """Return title, value and note of the four most important numbers."""
    metric, dense, compact = run.metric, run.value("dense"), run.value("compact")
    note = "dense network not evaluated"
    if dense is not None:
        note = f"dense {metric.show(dense)}, {_with_unit(metric, dense, compact)}"
    found = [(titled(metric, metric.title), MISSING if compact is None else metric.show(compact), note)]
    for title, key in (("MACs", "macs"), ("Parameters", "params")):
        large, small = run.get("dense", key), run.get("compact", key)
        found.append((title, short(small), f"dense {short(large)}, {fraction(small / large)} left"))
    large, small = run.get("dense", "latency_ms"), run.get("compact", "latency_ms")
    return [*found, ("Latency, batch 1", milliseconds(small), f"dense {milliseconds(large)}, {faster(run)}")]


# -- all runs ----------------------------------------------------------------------------------------------------------


def all_runs(runs: Sequence[Run]) -> Table:
    """Return one row per run. Each metric has its own columns."""
    metrics = list(dict.fromkeys(run.metric for run in runs))
    held_out = any(run.split == "validation" for run in runs)
    columns = (
        *_words("run", "method", "model"),
        _number("seed", "seed"),
        _number("budget", "budget", fraction),
        *(column for metric in metrics for column in _metric_columns(metric, held_out)),
        _number("macs_left", "MACs left", fraction),
        _number("params_left", "params left", fraction),
        _number("file_bytes", "file size", file_size),
        _number("latency_ms", "latency, batch 1", milliseconds),
        _number("latency_ms_32", "latency, batch 32", milliseconds),
        _number("seconds", "time", duration),
    )
    return Table("All runs", columns, [_run_row(run) for run in runs])


def _metric_columns(metric: Metric, held_out: bool) -> list[Column]:
    label = "acc." if metric == ACCURACY else metric.label
    return [
        _number(f"dense_{metric.name}", f"dense {label}", metric.show),
        _number(metric.name, f"compact {label}", metric.show),
        *([_number(f"validation_{metric.name}", f"validation {label}", metric.show)] if held_out else []),
        _number(f"{metric.name}_change", "change", lambda value: change(metric, value)),
    ]


def _run_row(run: Run) -> dict[str, Any]:
    name, dense, compact = run.metric.name, run.value("dense"), run.value("compact")
    return {
        **{"run": run.label, "method": run.method, "model": run.get("model")},
        **{"seed": run.recipe.run.seed, "budget": run.recipe.gates.budget},
        **{f"dense_{name}": dense, name: compact, f"{name}_change": _difference(dense, compact)},
        f"validation_{name}": run.value("compact", "validation"),
        **{key: run.get(key) for key in ("macs_left", "params_left", "seconds")},
        **{key: run.get("compact", key) for key in ("file_bytes", "latency_ms", "latency_ms_32")},
    }


# -- stages and answers ------------------------------------------------------------------------------------------------


def stages(run: Run) -> Table:
    """Return the metric before pruning, at the cut, and after each recovery step."""
    metric, dense = run.metric, run.value("dense", run.split)
    fits = {"compensated": "consumer layers refitted", "renewed": "batch-norm statistics re-estimated"}
    what = fits.get(str(run.get("freezing", "statistics")), "")
    found = [("dense network", dense, ""), ("at the cut", run.get("freezing", f"{metric.name}_after"), what)]
    for event in (event for event in run.events if event["event"] == "recovery"):
        numbers: list[Any] = [event.get(key) for key in ("steps", "loss_before", "loss_after")]
        text = ""
        if all(isinstance(value, (int, float)) for value in numbers):
            text = "{:.0f} steps; distance from the dense network's outputs {:.3g} → {:.3g}".format(*numbers)
        found.append(("recovered without labels", event.get(metric.name), text))
    epochs = sum(line.get("phase") == "finetune" for line in run.epochs)
    if epochs:
        text = f"{epochs} epoch{'s' if epochs > 1 else ''} with labels"
        found.append(("fine-tuned", run.value("compact", run.split), text))
    rows = [
        {"stage": stage, "value": value, "change": _difference(dense, value) if place else None, "what": text}
        for place, (stage, value, text) in enumerate(found)
        if isinstance(value, (int, float))
    ]
    columns = (
        Column("stage", ""),
        _number("value", f"{run.split} {metric.label}", metric.show),
        _number("change", "against dense", lambda value: change(metric, value)),
        Column("what", "what was done", missing=""),
    )
    return Table(f"{run.label}: before → at the cut → after", columns, rows if len(rows) > 1 else [])


def classes(run: Run) -> Table:
    """Return the accuracy of every class, before and after."""
    rows = []
    for each in run.answers.get("classes", []):
        dense, compact = (
            100 * right / each["images"] if right is not None and each["images"] else None
            for right in (each.get("dense"), each["compact"])
        )
        row = {"class": each["name"], "images": each["images"], "dense": dense, "compact": compact}
        rows.append({**row, "change": _difference(dense, compact)})
    columns = (
        Column("class", "class"),
        _number("images", "images", count),
        _number("dense", "dense", "{:.1f} %".format),
        _number("compact", "compact", "{:.1f} %".format),
        _number("change", "change, points", lambda value: change(ACCURACY, value)),
    )
    return Table(f"{run.label}: {run.answers.get('split')} accuracy of every class", columns, rows)


# -- layers ------------------------------------------------------------------------------------------------------------


def layers(run: Run) -> Table:
    """Return every layer: channels before and after, its cost, and the error of its outputs if it was refitted."""
    fitted = {each["layer"]: each for each in run.get("freezing", "fitted") or []}
    rows = []
    for place, row in enumerate(run.get("layers") or [], start=1):
        macs, params = row.get("macs") or (None, None), row.get("params") or (None, None)
        errors = fitted.get(row["layer"], {})
        cells = {key: row.get(key) for key in ("layer", "group", "channels", "kept")}
        cells |= {"place": place, "pruned": 1 - row["kept"] / row["channels"] if row["channels"] else None}
        cells |= {"dense_macs": macs[0], "macs": macs[1], "macs_left": macs[1] / macs[0] if macs[0] else None}
        cells |= {"dense_params": params[0], "params": params[1]}
        rows.append({**cells, "error_before": errors.get("before"), "error": errors.get("after")})
    same = bool(fitted) and all(row["group"] in (None, row["layer"]) for row in rows)  # then there is no need for it
    columns = [column for column in _LAYERS if not (same and column.key == "group")]
    return Table(f"{run.label}: layers", (*columns, *(_ERRORS if fitted else ())), rows)


_ERRORS = (_number("error_before", "error, cut", "{:.3f}".format), _number("error", "fitted", "{:.3f}".format))
"""columns for the squared error of a layer's outputs relative to their variance"""
_LAYERS = (
    _number("place", "#"),
    *_words("layer", "group"),
    _number("channels", "channels", count),
    _number("kept", "kept", count),
    _number("pruned", "pruned", fraction),
    _number("dense_macs", "MACs, dense", count),
    _number("macs", "compact", count),
    _number("macs_left", "left", fraction),
    _number("dense_params", "params, dense", count),
    _number("params", "compact", count),
)


def unprunable(run: Run) -> Table:
    """Return the channels that could not be pruned, and the reasons."""
    rows = [
        {"layer": row["layer"], "channels": row["channels"], "unprunable": channels, "reason": reason}
        for row in run.get("layers") or []
        for reason, channels in (row.get("unprunable") or {}).items()
    ]
    numbers = (_number("channels", "channels", count), _number("unprunable", "unprunable", count))
    return Table(f"{run.label}: unprunable channels", (*_words("layer"), *numbers, Column("reason", "why")), rows)


# -- facts -------------------------------------------------------------------------------------------------------------


def provenance(run: Run) -> Table:
    """Return the information needed to reproduce a run."""
    machine = run.environment.get("machine") or {}
    packages = run.environment.get("packages") or {}
    certificate = run.summary["certificate"]
    facts = {
        "seed": run.recipe.run.seed,
        "commit": run.environment.get("commit"),
        "Python": run.environment.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        **{name: machine.get(name) for name in ("system", "processor", "cores", "threads")},
        "GPUs": ", ".join(machine.get("gpus") or []),
        "device, precision": f"{run.recipe.run.device}, {run.recipe.run.precision}",
        "steps": count(run.get("steps") or 0),
        "time": duration(run.get("seconds") or 0),
        "compact = gated": f"largest difference {certificate['max_error']:.1e} ({certificate['dtype']})",
    }
    rows = [{"what": what, "value": value} for what, value in facts.items() if value not in (None, "")]
    return Table(f"{run.label}: how to repeat it", (Column("what", ""), Column("value", "")), rows)
