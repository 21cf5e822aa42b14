"""``depl0 paper tts``: time to solution, from nothing to a pruned network, beside dense training of the same length.

Every member of the benchmark is a run in a process of its own, one after another, with the same seed, epochs and memory
layout. Seed by seed the members run in turns, every second time in reverse, so that a machine that becomes slower or
faster affects all alike. Times are compared within a seed, member against member; what is said is the median of these
pairs, and from where to where they go. A member that is finished is not run again, and one that was interrupted goes on
from its checkpoint.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from depl0._util.io import atomic_write, read_json
from depl0._util.user_code import shown_spec
from depl0.app.bench.step import machine_load
from depl0.app.data import shown_data
from depl0.app.recipes.recipe import Recipe, task_of
from depl0.app.recipes.toml import read_recipe, with_overrides, write_recipe
from depl0.app.runs import schema as content
from depl0.app.runs.folder import RunFolder, environment
from depl0.app.table import markdown_grid
from depl0.app.tasks import metric_in
from depl0.errors import FormatError, InputError, TrainingError


@dataclass(frozen=True)
class Member:
    """One way to train, and what it changes in the recipe."""

    name: str
    kind: str = "prune"
    fields: dict[str, Any] = field(default_factory=dict)


_FORWARD = {"gates.method": "dep-l0", "gates.generator": "fc", "gates.direction": "forward"}
_BACKWARD = {**_FORWARD, "gates.direction": "backward"}
_L0_HC = {"gates.method": "l0-hc", "gates.generator": "independent"}

DENSE = Member("dense", "dense")
NEVER = Member("never", fields={**_FORWARD, "search.cut": "never"})
ONCE = Member("once", fields={**_FORWARD, "search.cut": "once"})
PROGRESSIVE = Member("progressive", fields={**_FORWARD, "search.cut": "progressive"})
COMPACTIONS = (DENSE, NEVER, ONCE, PROGRESSIVE)

L0_HC_ONCE = Member("l0-hc-once", fields={**_L0_HC, "search.cut": "once"})
METHODS = (  # extracted once, at convergence, as the paper does
    L0_HC_ONCE,
    ONCE,
    Member("backward-once", fields={**_BACKWARD, "search.cut": "once"}),
)
_METHOD_WORDS = {"l0-hc-once": "L0-HC", "once": "Dep-L0 forward", "backward-once": "Dep-L0 backward"}

LEAST_PAIRS = 3
"""identical dense runs differ by some percent: a figure from fewer pairs says little"""

ALL = tuple({member.name: member for member in COMPACTIONS + METHODS}.values())
"""in the order in which they run"""


def find_members(names: Sequence[str]) -> list[Member]:
    """Return the members with these names."""
    known = {member.name: member for member in ALL}
    for name in names:
        if name not in known:
            raise InputError(f"there is no member called {name!r}.", hint=f"there are {', '.join(known)}.")
    return [member for member in ALL if member.name in names]


# -- running ---------------------------------------------------------------------------------------------------------


def bench_tts(
    base: Recipe,
    out: Path,
    *,
    seeds: Sequence[int] = (0,),
    chosen: Sequence[Member] = ALL,
    threads: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run what is not finished yet in a folder, and return all that was measured."""
    recipes = {(member.name, seed): recipe_of(base, member, seed) for seed in seeds for member in chosen}
    _check_folder(out, recipes)
    for place, seed in enumerate(seeds):
        for member in chosen if place % 2 == 0 else reversed(chosen):
            _run(member, recipes[member.name, seed], _folder(out, member.name, seed), threads, note)
    rows = [measured(member.name, seed, _folder(out, member.name, seed)) for seed in seeds for member in chosen]
    return {
        "model": shown_spec(base.model.spec),
        "data": shown_data(base.data.spec),
        "metric": task_of(base).metric.to_dict(),
        "limit_train": base.data.limit_train,
        "batch": base.data.batch_size,
        "epochs": base.search.epochs + base.finetune.epochs,
        "search_epochs": base.search.epochs,
        "budget": base.gates.budget,
        "seeds": list(seeds),
        "threads": threads,
        "runs": rows,
        "pairs": all_pairs(rows),
        "environment": environment(),
    }


def recipe_of(base: Recipe, member: Member, seed: int) -> Recipe:
    """Return the recipe of one member. All have one memory layout: measured anew each time, it might differ."""
    layout = "on" if base.run.channels_last == "auto" else base.run.channels_last
    fields = {"name": f"tts-{member.name}-{seed}", "run.seed": seed, "run.channels_last": layout, "run.trackers": []}
    if member is DENSE:  # one schedule from start to end, since there is no fine-tuning that would anneal
        fields["weight_optimizer.schedule"] = "cosine"
    return with_overrides(base, {**fields, "search.dense_baseline": False, **member.fields})


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-{seed}"


def _check_folder(out: Path, recipes: dict[tuple[str, int], Recipe]) -> None:
    """Refuse to go on with other settings, before anything runs."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, not a folder.", hint="choose another --out.")
    for (name, seed), recipe in recipes.items():
        file = _folder(out, name, seed) / "recipe.toml"
        if file.exists() and read_recipe(file) != recipe:
            raise InputError(
                f"{file.parent} holds a run with other settings.",
                hint="repeat the command as it was, or choose another --out.",
            )


def _run(member: Member, recipe: Recipe, folder: Path, threads: int | None, note: Callable[[str], None]) -> None:
    """Run one member in a process of its own, and write down what it cost the processor."""
    if RunFolder(folder).summary() is not None:
        note(f"{folder.name}: finished before")
        return
    note(f"{folder.name}: begins")
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.parent / f"{folder.name}.toml"
    atomic_write(file, write_recipe(recipe).encode())
    command = [sys.executable, "-m", "depl0.paper.member", member.kind, str(file), str(folder)]
    variables = dict(os.environ) | ({"OMP_NUM_THREADS": str(threads)} if threads is not None else {})
    before, busy_before = _children_seconds(), machine_load()
    process = subprocess.Popen(command, env=variables)
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the member has heard it too, and saves what it has
        code = process.wait() or 1
    attempt = {"cpu_seconds": _children_seconds() - before, "load_before": busy_before, "load_after": machine_load()}
    _add_attempt(folder, attempt)
    if code != 0 or RunFolder(folder).summary() is None:
        raise TrainingError(
            f"{folder.name} ended before it was finished.", hint="give the same command again: finished runs stay."
        )


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


class _Attempt(content.Fields):
    cpu_seconds: content.Count


class _Timed(content.Fields):
    seconds: content.Count


class _TimedEpoch(content.Fields):
    phase: content.Text
    epoch: content.Count
    seconds: content.Count


_ATTEMPTS, _TIMED, _EPOCHS = content.Check(list[_Attempt]), content.Check(_Timed), content.Check(list[_TimedEpoch])


def _attempts(folder: Path) -> list[dict[str, Any]]:
    file = folder.parent / f"{folder.name}.attempts.json"
    if not file.exists():
        return []
    try:
        found = read_json(file)
        _ATTEMPTS(found, "")
    except (OSError, ValueError, RecursionError, content.Wrong) as error:
        raise FormatError(f"{file} is damaged: {error}.", hint="delete it: only processor time is lost.") from error
    return list(found)


def _add_attempt(folder: Path, attempt: dict[str, Any]) -> None:
    text = json.dumps([*_attempts(folder), attempt], indent=1) + "\n"
    atomic_write(folder.parent / f"{folder.name}.attempts.json", text.encode())


# -- figures ---------------------------------------------------------------------------------------------------------


def measured(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one finished run."""
    run = RunFolder(folder)
    summary = run.summary()
    assert summary is not None, folder
    epochs = [line for line in run.metrics.read() if "event" not in line]
    _check(folder, summary, epochs)
    converged = (summary.get("convergence") or {}).get("epoch")
    search = [line["seconds"] for line in epochs if line["phase"] == "search"]
    until = [line["seconds"] for line in epochs if line["phase"] == "search" and line["epoch"] <= (converged or 1e9)]
    result, metric = summary.get("compact", summary["dense"]), metric_in(summary)
    attempts = _attempts(folder)
    return {
        "member": name,
        "seed": seed,
        metric.name: result[metric.name],
        "macs_left": summary.get("macs_left", 1.0),
        "params_left": summary.get("params_left", 1.0),
        "seconds": summary["seconds"],
        "cpu_seconds": sum(attempt["cpu_seconds"] for attempt in attempts),
        "attempts": attempts,
        "epochs": len(epochs),
        "epochs_before_convergence": converged,
        "epochs_to_settle": summary.get("settled_epoch"),
        "seconds_per_epoch_before_convergence": statistics.fmean(until or search) if search else None,
        "epoch_seconds": [line["seconds"] for line in epochs],
        "compactions": summary.get("compactions", []),
        "channels_last": summary.get("channels_last"),
    }


def _check(folder: Path, summary: dict[str, Any], epochs: list[dict[str, Any]]) -> None:
    """Refuse the files of a run that are damaged, before anything is computed from them."""
    result = "compact" if "compact" in summary else "dense"
    try:
        content.SUMMARY(summary)
        _TIMED(summary)
        content.check_score(summary[result], metric_in(summary).name, result)
        _EPOCHS(epochs, "metrics.jsonl")
    except content.Wrong as wrong:
        raise FormatError(
            f"{folder} is damaged: {wrong}.", hint="delete it, and give the same command again."
        ) from wrong


def all_pairs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the times of every member as shares of dense, never and L0-HC, seed by seed."""
    names = list(dict.fromkeys(row["member"] for row in rows))
    return [
        {"member": name, "of": whole, "figure": figure, **found}
        for name in names
        for whole in (DENSE.name, NEVER.name, L0_HC_ONCE.name)
        for figure in ("seconds", "cpu_seconds")
        if name != whole and (found := pairs(rows, name, whole, figure)) is not None
    ]


def pairs(rows: Sequence[dict[str, Any]], name: str, whole: str, figure: str) -> dict[str, Any] | None:
    """Return a figure of one member over another's with the same seed: number, median, least and largest.

    >>> rows = [{"member": m, "seed": s, "x": x} for m, s, x in [("a", 0, 1), ("b", 0, 2), ("a", 1, 3), ("b", 1, 3)]]
    >>> pairs(rows, "a", "b", "x")
    {'n': 2, 'median': 0.75, 'least': 0.5, 'largest': 1.0}
    """
    ours, theirs = ({row["seed"]: row[figure] for row in rows if row["member"] == each} for each in (name, whole))
    ratios = [ours[seed] / theirs[seed] for seed in ours if theirs.get(seed)]
    if not ratios:
        return None
    return {"n": len(ratios), "median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios)}


def tts_table(result: dict[str, Any]) -> str:
    """Return both tables as Markdown: compaction against dense training, and the paper's over its methods."""
    names = {row["member"]: None for row in result["runs"]}
    compactions = [member.name for member in COMPACTIONS if member.name in names]
    methods = [member.name for member in METHODS if member.name in names]
    size = f"{result['limit_train']:,} images of " if result["limit_train"] else ""
    seeds = len(result["seeds"])
    head = (
        f"{result['model']} on {size}{result['data'].partition(':')[0]}, batch {result['batch']}, "
        f"{result['epochs']} epochs, budget {result['budget']:.0%} of the MACs, "
        f"{seeds} seed{'s' if seeds > 1 else ''}, seconds of one run after another. Shares are medians of {seeds} "
        f"pair{'s' if seeds > 1 else ''} with the same seed, and from where to where they go."
    )
    if seeds < LEAST_PAIRS:
        head += f" Identical runs differ by some percent: take at least {LEAST_PAIRS} pairs."
    return "\n\n".join([head, _compaction_table(result, compactions), _method_table(result, methods)]).rstrip()


def _compaction_table(result: dict[str, Any], names: Iterable[str]) -> str:
    metric = metric_in(result)
    rows = [
        [
            name,
            f"{_mean(result, name, 'seconds'):.0f}",
            f"{_spread(result, name, 'seconds'):.0f}",
            _share(result, name, DENSE.name, "seconds"),
            _share(result, name, NEVER.name, "seconds"),
            f"{_mean(result, name, 'cpu_seconds'):.0f}",
            _share(result, name, DENSE.name, "cpu_seconds"),
            _share(result, name, NEVER.name, "cpu_seconds"),
            metric.show(_mean(result, name, metric.name)),
            f"{_mean(result, name, 'macs_left'):.1%}",
            f"{statistics.fmean(len(row['compactions']) for row in _rows(result, name)):g}",
        ]
        for name in names
    ]
    shares = ["of dense", "of never"]
    return markdown_grid(["", "s", "±", *shares, "CPU s", *shares, metric.label, "MACs left", "compactions"], rows)


def _share(result: dict[str, Any], name: str, whole: str, figure: str) -> str:
    """Return a member's time as a share of another's, if that was run: the median of the pairs, and their range."""
    found = pairs(result["runs"], name, whole, figure)
    if found is None:
        return ""
    spread = f" ({found['least']:.3f}–{found['largest']:.3f})" if found["n"] > 1 and name != whole else ""
    return f"{found['median']:.3f}{spread}"


def _method_table(result: dict[str, Any], names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    rows, metric = [], metric_in(result)
    for name in names:
        rows.append(
            [
                _METHOD_WORDS[name],
                f"{_mean(result, name, 'epochs'):g}",
                _epochs(result, name, "epochs_before_convergence"),
                _epochs(result, name, "epochs_to_settle"),
                f"{_mean(result, name, 'seconds_per_epoch_before_convergence'):.1f}",
                f"{_mean(result, name, 'seconds'):.0f}",
                _share(result, name, L0_HC_ONCE.name, "seconds"),
                metric.show(_mean(result, name, metric.name)),
            ]
        )
    epochs = ["epochs", "epochs before convergence", "epochs to settle"]
    head = ["", *epochs, "s per epoch before", "time to solution, s", "of L0-HC", metric.label]
    return (
        markdown_grid(head, rows)
        + "\n\nConvergence is what a search notices while it goes on. To settle: until the first epoch after which at "
        "most 1 % of the gates differ from the final set."
    )


def _epochs(result: dict[str, Any], name: str, figure: str) -> str:
    """Return a mean number of epochs, and of how many runs it is where others have none."""
    found = [row.get(figure) for row in _rows(result, name)]
    there = [epochs for epochs in found if epochs is not None]
    if not there:
        return "never"
    of = "" if len(there) == len(found) else f" ({len(there)} of {len(found)})"
    return f"{statistics.fmean(there):.1f}{of}"


def _rows(result: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [row for row in result["runs"] if row["member"] == name]


def _mean(result: dict[str, Any], name: str, figure: str) -> float:
    return statistics.fmean(row[figure] for row in _rows(result, name))


def _spread(result: dict[str, Any], name: str, figure: str) -> float:
    values = [row[figure] for row in _rows(result, name)]
    return statistics.stdev(values) if len(values) > 1 else 0.0
