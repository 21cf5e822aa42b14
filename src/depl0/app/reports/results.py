"""The tables of a report: dense → compact, all runs, layers, unprunable channels, and provenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from depl0.app.reports.run import Run, dig
from depl0.app.reports.show import change as changed
from depl0.app.reports.show import count, duration, milliseconds, share, size
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


def dense_to_compact(run: Run) -> Table:
    """Return the metric and the cost of the dense and the compact network."""
    label = run.metric.label
    if run.split == "test":
        rows = [_metric_row(run.metric, label, run.value("dense"), run.value("compact"))]
    else:
        held_out = run.validation("dense"), run.validation("compact")
        rows = [
            _metric_row(run.metric, f"validation {label}", *held_out),
            _metric_row(run.metric, f"test {label}", run.value("dense"), run.value("compact")),
        ]
    for name, key, show in _QUANTITIES:
        large, small = run.get("dense", key), run.get("compact", key)
        ratio = small / large if large and small is not None else None
        compared = _shown(lambda r: f"{share(r)} left", ratio)
        if key.startswith("latency"):
            compared = faster(run, int(name.rpartition(" ")[2]))
        rows.append(
            {
                "quantity": name,
                "dense": _shown(show, large),
                "compact": _shown(show, small),
                "change": compared,
            }
        )
    columns = (
        Column("quantity", ""),
        Column("dense", "dense", is_number=True),
        Column("compact", "compact", is_number=True),
        Column("change", "change", is_number=True),
    )
    return Table(f"{run.label}: dense → compact", columns, rows)


def _metric_row(metric: Metric, label: str, dense: float | None, compact: float | None) -> dict[str, Any]:
    unit = " points" if metric.unit == "%" else f" {metric.unit}".rstrip()
    return {
        "quantity": label if metric.higher_is_better else f"{label} ({metric.direction})",
        "dense": _shown(metric.show, dense),
        "compact": _shown(metric.show, compact),
        "change": _shown(lambda value: changed(metric, value) + unit, _difference(dense, compact)),
    }


def faster(run: Run, batch: int = 1) -> str | None:
    """Format the speed-up of the compact network with its interval; None if it was not timed."""
    found = run.get("speedup", str(batch))
    return None if found is None else Speedup(**found).in_words()


def _shown(show: _Show, value: float | None) -> str | None:
    return None if value is None else show(value)


def _difference(before: float | None, after: float | None) -> float | None:
    return after - before if before is not None and after is not None else None


def all_runs(runs: Sequence[Run]) -> Table:
    """Return one row per run. If runs have different metrics, each metric has its own columns."""
    metrics = list(dict.fromkeys(run.metric for run in runs))
    changes = {metric: "change" if len(metrics) == 1 else f"{metric.name}_change" for metric in metrics}
    rows = [_run_row(run, changes[run.metric]) for run in runs]
    held_out = any(run.split == "validation" for run in runs)
    of_metrics = [column for metric in metrics for column in _metric_columns(metric, changes[metric], held_out)]
    return Table("All runs", (*_BEFORE_METRICS, *of_metrics, *_AFTER_METRICS), rows)


def _metric_columns(metric: Metric, change: str, held_out: bool) -> tuple[Column, ...]:
    short = "acc." if metric == ACCURACY else metric.label
    validation = Column(f"validation_{metric.name}", f"validation {short}", metric.show, is_number=True)
    return (
        Column(f"dense_{metric.name}", f"dense {short}", metric.show, is_number=True),
        Column(metric.name, f"compact {short}", metric.show, is_number=True),
        *([validation] if held_out else []),
        Column(change, "change", lambda value: changed(metric, value), is_number=True),
    )


def _run_row(run: Run, change: str) -> dict[str, Any]:
    name, dense, compact = run.metric.name, run.value("dense"), run.value("compact")
    row: dict[str, Any] = {
        "run": run.label,
        "name": run.get("name") or run.recipe.get("name"),
        "method": run.method,
        "model": run.get("model") or dig(run.recipe, "model", "spec"),
        "data": run.get("data") or dig(run.recipe, "data", "spec"),
        "seed": run.get("seed") if run.is_finished else dig(run.recipe, "run", "seed"),
        "budget": dig(run.recipe, "gates", "budget"),
        "budget_of": run.get("budget_of"),
        f"dense_{name}": dense,
        name: compact,
        f"validation_{name}": run.validation("compact"),
        change: _difference(dense, compact),
        "macs_left": run.get("macs_left"),
        "params_left": run.get("params_left"),
        "converged_epoch": run.get("convergence", "epoch"),
        "settled_epoch": run.get("settled_epoch"),
        "seconds": run.get("seconds"),
        "steps": run.get("steps"),
        "commit": run.environment.get("commit"),
    }
    for _, key, _show in _QUANTITIES:
        for network in ("dense", "compact"):
            row[f"{network}_{key}"] = run.get(network, key)
    return row


_BEFORE_METRICS = (
    Column("run", "run"),
    Column("name", "name", hidden=True),
    Column("method", "method"),
    Column("model", "model"),
    Column("data", "data", hidden=True),
    Column("seed", "seed", is_number=True),
    Column("budget", "budget", share, is_number=True),
    Column("budget_of", "of", hidden=True),
)
_AFTER_METRICS = (
    Column("macs_left", "MACs left", share, is_number=True),
    Column("params_left", "params left", share, is_number=True),
    *(
        Column(
            f"{network}_{key}",
            f"{name}, {network}",
            show,
            is_number=True,
            hidden=not (network == "compact" and key in ("latency_ms", "latency_ms_32", "file_bytes")),
        )
        for name, key, show in _QUANTITIES
        for network in ("dense", "compact")
    ),
    Column("converged_epoch", "converged at epoch", is_number=True, hidden=True),
    Column("settled_epoch", "settled since epoch", is_number=True, hidden=True),
    Column("seconds", "time", duration, is_number=True),
    Column("steps", "steps", count, hidden=True),
    Column("commit", "commit", hidden=True),
)


def layers(run: Run) -> Table:
    """Return every layer: channels before and after, and its cost."""
    fitted = {each["layer"]: each for each in run.get("freezing", "fitted") or []}
    rows = [
        _layer_row(row, place, fitted.get(row["layer"], {}))
        for place, row in enumerate(run.get("layers") or [], start=1)
    ]
    named_after_layers = all(row["group"] in (None, row["layer"]) for row in rows)
    known = [column for column in _LAYERS if not (fitted and named_after_layers and column.key == "group")]
    return Table(f"{run.label}: layers", (*known, *(_ERRORS if fitted else ())), rows)


def _layer_row(row: dict[str, Any], place: int, fitted: dict[str, Any]) -> dict[str, Any]:
    macs, params = row.get("macs") or (None, None), row.get("params") or (None, None)
    return {
        "place": place,
        "layer": row["layer"],
        "group": row.get("group"),
        "channels": row["channels"],
        "kept": row["kept"],
        "pruned": 1 - row["kept"] / row["channels"] if row["channels"] else None,
        "dense_macs": macs[0],
        "macs": macs[1],
        "macs_left": macs[1] / macs[0] if macs[0] else None,
        "dense_params": params[0],
        "params": params[1],
        "error_before": fitted.get("before"),
        "error": fitted.get("after"),
    }


_ERRORS = (
    Column("error_before", "error, cut", "{:.3f}".format, is_number=True),
    Column("error", "fitted", "{:.3f}".format, is_number=True),
)
"""columns for the squared error of a layer's outputs relative to their variance"""
_LAYERS = (
    Column("place", "#", is_number=True),
    Column("layer", "layer"),
    Column("group", "group"),
    Column("channels", "channels", count, is_number=True),
    Column("kept", "kept", count, is_number=True),
    Column("pruned", "pruned", share, is_number=True),
    Column("dense_macs", "MACs, dense", count, is_number=True),
    Column("macs", "compact", count, is_number=True),
    Column("macs_left", "left", share, is_number=True),
    Column("dense_params", "params, dense", count, is_number=True),
    Column("params", "compact", count, is_number=True),
)


def unprunable(run: Run) -> Table:
    """Return the channels that could not be pruned, and the reasons; summaries of older versions call them frozen."""
    rows = [
        {"layer": row["layer"], "channels": row["channels"], "unprunable": channels, "reason": reason}
        for row in run.get("layers") or []
        for reason, channels in (row.get("unprunable") or row.get("frozen") or {}).items()
    ]
    columns = (
        Column("layer", "layer"),
        Column("channels", "channels", count, is_number=True),
        Column("unprunable", "unprunable", count, is_number=True),
        Column("reason", "why"),
    )
    return Table(f"{run.label}: unprunable channels", columns, rows)


def search_facts(run: Run) -> Table:
    """Return when the gates of the search settled, and how many gates the budget closed at the end."""
    facts = {
        "converged": _converged(run),
        "at most 1 % of the gates differ from the final set since": _shown(
            "epoch {:g}".format, run.get("settled_epoch")
        ),
        "gates closed by the budget at the end": run.get("freezing", "gates_closed"),
    }
    rows = [{"what": what, "value": value} for what, value in facts.items() if value is not None]
    return Table(f"{run.label}: the search", (Column("what", ""), Column("value", "")), rows)


def _converged(run: Run) -> str | None:
    epoch, since = run.get("convergence", "epoch"), run.get("convergence", "since_epoch")
    if epoch is None:  # for a search with gates, both outcomes are reported
        return None if run.get("settled_epoch") is None else "not noticed before its end"
    return f"epoch {epoch:.4g}" + (f" (at rest since {since:.4g})" if isinstance(since, (int, float)) else "")


def provenance(run: Run) -> Table:
    """Return the information needed to reproduce a run."""
    environment = run.environment
    machine = environment.get("machine") or {}
    error, dtype = run.get("certificate", "max_error"), run.get("certificate", "dtype")
    facts = {
        "seed": dig(run.recipe, "run", "seed"),
        "commit": environment.get("commit"),
        "Python": environment.get("python"),
        "packages": ", ".join(f"{k} {v}" for k, v in (environment.get("packages") or {}).items()),
        "system": machine.get("system"),
        "processor": machine.get("processor"),
        "cores, threads": f"{machine.get('cores')}, {machine.get('threads')}" if machine else None,
        "GPUs": ", ".join(machine.get("gpus") or []) if machine else None,
        "device, precision": ", ".join(str(dig(run.recipe, "run", key) or "?") for key in ("device", "precision")),
        "steps": _shown(count, run.get("steps")),
        "time": _shown(duration, run.get("seconds")),
        "compact = gated": _shown(lambda value: f"largest difference {value:.1e} ({dtype})", error),
    }  # fmt: skip
    rows = [{"what": what, "value": value} for what, value in facts.items()]
    return Table(f"{run.label}: how to repeat it", (Column("what", ""), Column("value", "")), rows)
