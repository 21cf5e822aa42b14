"""The tables of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from depl0.app.reports.run import Run, dig
from depl0.app.reports.show import change as changed
from depl0.app.reports.show import count, duration, fraction, milliseconds, points, size
from depl0.app.table import Column, Table
from depl0.app.tasks import ACCURACY, Metric
from depl0.latency.measure import Speedup

_Show = Callable[[float], str]
_QUANTITIES: tuple[tuple[str, str, _Show], ...] = (
    ("MACs", "macs", count),
    ("parameters", "params", count),
    ("file size", "file_bytes", size),
    ("latency, batch 1", "latency_ms", milliseconds),
    ("latency, batch 32", "latency_ms_32", milliseconds),
    ("memory, batch 1", "memory_bytes", size),
    ("memory, batch 32", "memory_bytes_32", size),
)


def _number(key: str, title: str, show: Callable[[Any], str] = str, *, hidden: bool = False) -> Column:
    return Column(key, title, show, is_number=True, hidden=hidden)


def _shown(show: _Show, value: float | None) -> str | None:
    return None if value is None else show(value)


def _difference(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None else None


def dense_to_compact(run: Run) -> Table:
    """Return the metric and the cost of the dense and the compact network."""
    splits = ["test"] if run.split == "test" else ["validation", "test"]
    rows = [_metric_row(run, split, f"{split} " if len(splits) > 1 else "") for split in splits]
    for name, key, show in _QUANTITIES:
        large, small = run.get("dense", key), run.get("compact", key)
        if key.startswith("latency"):
            compared = faster(run, int(name.rpartition(" ")[2]))
        else:
            compared = f"{fraction(small / large)} left" if large and small is not None else None
        cells = {"dense": _shown(show, large), "compact": _shown(show, small)}
        rows.append({"quantity": name, **cells, "change": compared})
    columns = (Column("quantity", ""), _number("dense", "dense"), _number("compact", "compact"))
    return Table(f"{run.label}: dense → compact", (*columns, _number("change", "change")), rows)


def _metric_row(run: Run, split: str, before: str) -> dict[str, Any]:
    metric, dense, compact = run.metric, run.value("dense", split), run.value("compact", split)
    unit = " points" if metric.unit == "%" else f" {metric.unit}".rstrip()
    return {
        "quantity": before + metric.label + ("" if metric.higher_is_better else f" ({metric.direction})"),
        "dense": _shown(metric.show, dense),
        "compact": _shown(metric.show, compact),
        "change": _shown(lambda value: changed(metric, value) + unit, _difference(dense, compact)),
    }


def faster(run: Run, batch: int = 1) -> str | None:
    """Format the speed-up of the compact network with its interval; None if it was not timed."""
    found = run.get("speedup", str(batch))
    return None if found is None else Speedup(**found).in_words()


# -- all runs ----------------------------------------------------------------------------------------------------------


def all_runs(runs: Sequence[Run]) -> Table:
    """Return one row per run. Each metric has its own columns."""
    metrics = list(dict.fromkeys(run.metric for run in runs))
    held_out = any(run.split == "validation" for run in runs)
    columns = [column for metric in metrics for column in _metric_columns(metric, held_out)]
    return Table("All runs", (*_BEFORE_METRICS, *columns, *_AFTER_METRICS), [_run_row(run) for run in runs])


def _metric_columns(metric: Metric, held_out: bool) -> list[Column]:
    label = "acc." if metric == ACCURACY else metric.label
    return [
        _number(f"dense_{metric.name}", f"dense {label}", metric.show),
        _number(metric.name, f"compact {label}", metric.show),
        *([_number(f"validation_{metric.name}", f"validation {label}", metric.show)] if held_out else []),
        _number(f"{metric.name}_change", "change", lambda value: changed(metric, value)),
    ]


def _run_row(run: Run) -> dict[str, Any]:
    name, dense, compact = run.metric.name, run.value("dense"), run.value("compact")
    return {
        "run": run.label,
        "name": run.recipe.get("name"),
        "method": run.method,
        "model": run.get("model") or dig(run.recipe, "model", "spec"),
        "data": run.get("data") or dig(run.recipe, "data", "spec"),
        "seed": dig(run.recipe, "run", "seed"),
        "budget": dig(run.recipe, "gates", "budget"),
        "budget_of": run.get("budget_of"),
        f"dense_{name}": dense,
        name: compact,
        f"validation_{name}": run.value("compact", "validation"),
        f"{name}_change": _difference(dense, compact),
        **{key: run.get(key) for key in ("macs_left", "params_left", "settled_epoch", "seconds", "steps")},
        "converged_epoch": run.get("convergence", "epoch"),
        "commit": run.environment.get("commit"),
        **{f"{part}_{key}": run.get(part, key) for _, key, _ in _QUANTITIES for part in ("dense", "compact")},
    }


_BEFORE_METRICS = (
    Column("run", "run"),
    Column("name", "name", hidden=True),
    Column("method", "method"),
    Column("model", "model"),
    Column("data", "data", hidden=True),
    _number("seed", "seed"),
    _number("budget", "budget", fraction),
    Column("budget_of", "of", hidden=True),
)
_SEEN = ("compact_latency_ms", "compact_latency_ms_32", "compact_file_bytes")
_AFTER_METRICS = (
    _number("macs_left", "MACs left", fraction),
    _number("params_left", "params left", fraction),
    *(
        _number(f"{part}_{key}", f"{name}, {part}", show, hidden=f"{part}_{key}" not in _SEEN)
        for name, key, show in _QUANTITIES
        for part in ("dense", "compact")
    ),
    _number("converged_epoch", "converged at epoch", hidden=True),
    _number("settled_epoch", "settled since epoch", hidden=True),
    _number("seconds", "time", duration),
    Column("steps", "steps", count, hidden=True),
    Column("commit", "commit", hidden=True),
)


# -- stages and answers ------------------------------------------------------------------------------------------------


def stages(run: Run) -> Table:
    """Return the metric before pruning, at the cut, and after each recovery step."""
    metric, dense = run.metric, run.value("dense", run.split)
    found: list[tuple[str, float | None, str]] = [("dense network", dense, "")]
    fits = {"compensated": "layers behind the cut fitted anew", "renewed": "batch-norm statistics measured anew"}
    cut = run.get("freezing", f"{metric.name}_after")
    found.append(("at the cut", cut, fits.get(str(run.get("freezing", "statistics")), "")))
    for event in (event for event in run.events if event["event"] == "recovery"):
        found.append(("recovered without labels", event.get(metric.name), _recovery(event)))
    epochs = sum(line.get("phase") == "finetune" for line in run.epochs)
    if epochs:
        trained = f"{epochs} epoch{'s' if epochs > 1 else ''} with labels"
        found.append(("fine-tuned", run.value("compact", run.split), trained))
    rows = [
        {"stage": stage, "value": value, "change": _difference(dense, value) if place else None, "what": what}
        for place, (stage, value, what) in enumerate(found)
        if isinstance(value, (int, float))
    ]
    columns = (
        Column("stage", ""),
        _number("value", f"{run.split} {metric.label}", metric.show),
        _number("change", "against dense", lambda value: changed(metric, value)),
        Column("what", "what was done", missing=""),
    )
    return Table(f"{run.label}: before → at the cut → after", columns, rows if len(rows) > 1 else [])


def _recovery(event: dict[str, Any]) -> str:
    steps, before, after = (event.get(key) for key in ("steps", "loss_before", "loss_after"))
    if not all(isinstance(value, (int, float)) for value in (steps, before, after)):
        return ""
    return f"{steps} steps; distance from the dense network's answers {before:.3g} → {after:.3g}"


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
        _number("change", "change, points", points),
    )
    return Table(f"{run.label}: {run.answers.get('split')} accuracy of every class", columns, rows)


def examples(run: Run) -> list[dict[str, Any]]:
    """Return the images whose prediction changed with the names of their classes, newly wrong ones first."""
    names = [each["name"] for each in run.answers.get("classes", [])]
    order, found = ("now wrong", "now right", "wrong before and after"), []
    for example in run.answers.get("examples", []):
        label, dense, compact = (example[key] for key in ("label", "dense", "compact"))
        verdict = order[1] if compact == label else order[0] if dense == label else order[2]
        named = {key: names[example[key]] for key in ("label", "dense", "compact") if example[key] < len(names)}
        found.append({**example, **named, "verdict": verdict})
    return sorted(found, key=lambda example: order.index(example["verdict"]))


# -- layers ------------------------------------------------------------------------------------------------------------


def layers(run: Run) -> Table:
    """Return every layer: channels before and after, its cost, and the error of its outputs if it was refitted."""
    fitted = {each["layer"]: each for each in run.get("freezing", "fitted") or []}
    rows = [
        _layer_row(row, place, fitted.get(row["layer"], {}))
        for place, row in enumerate(run.get("layers") or [], start=1)
    ]
    if not fitted:
        return Table(f"{run.label}: layers", _LAYERS, rows)
    same = all(row["group"] in (None, row["layer"]) for row in rows)  # then the column of groups is left out
    columns = [column for column in _LAYERS if not (same and column.key == "group")]
    return Table(f"{run.label}: layers", (*columns, *_ERRORS), rows)


def _layer_row(row: dict[str, Any], place: int, fitted: dict[str, Any]) -> dict[str, Any]:
    macs, params = row.get("macs") or (None, None), row.get("params") or (None, None)
    return {
        **{key: row.get(key) for key in ("layer", "group", "channels", "kept")},
        "place": place,
        "pruned": 1 - row["kept"] / row["channels"] if row["channels"] else None,
        "dense_macs": macs[0],
        "macs": macs[1],
        "macs_left": macs[1] / macs[0] if macs[0] else None,
        "dense_params": params[0],
        "params": params[1],
        "error_before": fitted.get("before"),
        "error": fitted.get("after"),
    }


_ERRORS = (_number("error_before", "error, cut", "{:.3f}".format), _number("error", "fitted", "{:.3f}".format))
"""columns for the squared error of a layer's outputs relative to their variance"""
_LAYERS = (
    _number("place", "#"),
    Column("layer", "layer"),
    Column("group", "group"),
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
    """Return the channels that could not be pruned, and the reasons; summaries of older versions call them frozen."""
    rows = [
        {"layer": row["layer"], "channels": row["channels"], "unprunable": channels, "reason": reason}
        for row in run.get("layers") or []
        for reason, channels in (row.get("unprunable") or row.get("frozen") or {}).items()
    ]
    numbers = (_number("channels", "channels", count), _number("unprunable", "unprunable", count))
    columns = (Column("layer", "layer"), *numbers, Column("reason", "why"))
    return Table(f"{run.label}: unprunable channels", columns, rows)


# -- facts -------------------------------------------------------------------------------------------------------------


def _facts(title: str, facts: dict[str, Any]) -> Table:
    rows = [{"what": what, "value": value} for what, value in facts.items() if value is not None]
    return Table(title, (Column("what", ""), Column("value", "")), rows)


def search_facts(run: Run) -> Table:
    """Return when the gates of the search settled, and how many gates the budget closed at the end."""
    settled, epoch, since = run.get("settled_epoch"), *(run.get("convergence", key) for key in ("epoch", "since_epoch"))
    converged = None if settled is None else "not noticed before its end"
    if epoch is not None:
        converged = f"epoch {epoch:.4g}" + (f" (at rest since {since:.4g})" if isinstance(since, (int, float)) else "")
    facts = {
        "converged": converged,
        "at most 1 % of the gates differ from the final set since": _shown("epoch {:g}".format, settled),
        "gates closed by the budget at the end": run.get("freezing", "gates_closed"),
    }
    return _facts(f"{run.label}: the search", facts)


def provenance(run: Run) -> Table:
    """Return the information needed to reproduce a run."""
    environment = run.environment
    machine = environment.get("machine") or {}
    error, dtype = run.get("certificate", "max_error"), run.get("certificate", "dtype")
    facts = {
        "seed": dig(run.recipe, "run", "seed"),
        "commit": environment.get("commit"),
        "Python": environment.get("python"),
        "packages": ", ".join(f"{k} {v}" for k, v in (environment.get("packages") or {}).items()) or None,
        "system": machine.get("system"),
        "processor": machine.get("processor"),
        "cores, threads": f"{machine.get('cores')}, {machine.get('threads')}" if machine else None,
        "GPUs": ", ".join(machine.get("gpus") or []) or None,
        "device, precision": ", ".join(str(dig(run.recipe, "run", key) or "?") for key in ("device", "precision")),
        "steps": _shown(count, run.get("steps")),
        "time": _shown(duration, run.get("seconds")),
        "compact = gated": _shown(lambda value: f"largest difference {value:.1e} ({dtype})", error),
    }
    return _facts(f"{run.label}: how to repeat it", facts)
