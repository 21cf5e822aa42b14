"""The page of the claims: verdicts, one line for each setting, a figure, all comparisons, and what made the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depl0._util.io import atomic_write
from depl0.app.studies.measures import made_with_note
from depl0.app.studies.study import write_json
from depl0.app.table import MISSING, markdown_grid
from depl0.errors import InputError
from depl0.paper.claims.figure import curves_of, draw
from depl0.paper.claims.judge import of_setting
from depl0.paper.claims.statistics import CONFIDENCE, Sample

FIGURE = "curves"
_INTERVAL = f"in favour of the first ({CONFIDENCE:.0%} interval)"


def page(result: dict[str, Any], title: str, beside: Sequence[str] = (), note: str = "") -> str:
    """Return the text of ``README.md``; ``beside`` are other pages of its folder, ``note`` a paragraph by hand."""
    claims = [claim for claim in result["claims"] if claim["decides"]]
    rows = [[claim["claim"], claim["verdict"], claim["due_to_dependency"] or MISSING] for claim in claims]
    parts = [
        f"# {title}",
        f"Written by `depl0 paper claims` from {len(result['runs'])} finished runs. Dep-L0 is `{result['method']}`; "
        f"`control` is Dep-L0 with `{result['control']}` (W = 0), whose gates know nothing of each other."
        + (f" See also {', '.join(f'[{name}]({name})' for name in beside)}." if beside else ""),
        *([note] if note else []),
        _words(["claim", "verdict", "due to dependency?"], rows),
        "One line for each setting; where several kinds of runs are compared there, the one that speaks most against "
        "the claim:",
        _words(["claim", "setting", "compared", _INTERVAL, "seeds", "verdict"], [r for c in claims for r in _lines(c)]),
        *([f"![Score over cost by kind of runs]({FIGURE}.svg)"] if curves_of(result) else []),
        "## How it is judged",
        result["rule"],
        "## Settings",
        "\n".join(f"- **{name}**: {setting['description']}" for name, setting in result["settings"].items()),
        *(_details(claim) for claim in result["claims"] if claim["comparisons"]),
        "## Runs",
        "Settled: the first step (epoch, where gates were logged once an epoch) after which at most 1 % of the gates "
        "differ from the final set. Unevenness: the standard deviation over gated layers of the share of closed gates; "
        "a layer that is closed whole counts as 1, although it keeps a channel (runs of older files: of the share of "
        "channels that is kept). Means over seeds; every run is in [claims.json](claims.json).",
        _run_table(result),
        *made_with_note(result["made_with"]),
    ]
    if result["left_out"]:
        runs = "1 run is" if result["left_out"] == 1 else f"{result['left_out']} runs are"
        parts.append(f"{runs} left out: not finished, or of another method.")
    return "\n\n".join(parts) + "\n"


def _words(head: list[str], rows: list[list[str]]) -> str:
    return markdown_grid(head, rows, is_number=[False] * len(head))


def _lines(claim: dict[str, Any]) -> list[list[str]]:
    """Return one line for each setting of a claim: of decided comparisons, the one that is least in its favour."""
    lines = []
    for setting in dict.fromkeys(each["setting"] for each in claim["comparisons"]):
        comparisons = [each for each in claim["comparisons"] if each["setting"] == setting]
        decided = [each for each in comparisons if each["verdict"] != "open"] or comparisons
        worst = min(decided, key=lambda each: float("inf") if each["found"] is None else float(each["found"]["mean"]))
        others = f" (and {len(comparisons) - 1} more)" if len(comparisons) > 1 else ""
        verdict = of_setting(each["verdict"] for each in comparisons)
        lines.append(
            [
                claim["claim"],
                setting,
                f"{worst['left']} against {worst['right']}{others}",
                _difference(worst, claim["digits"]),
                str(min(int(sample["n"]) for sample in worst["figures"].values())),
                verdict + (f" ({worst['reason']})" if worst["reason"] else ""),
            ]
        )
    return lines or [[claim["claim"], MISSING, "no two kinds of runs", MISSING, MISSING, "open"]]


def _difference(comparison: dict[str, Any], digits: int) -> str:
    found = comparison["found"]
    if found is None:
        return MISSING
    interval = "" if found["low"] is None else f" ({found['low']:+.{digits}f} to {found['high']:+.{digits}f})"
    return f"{found['mean']:+.{digits}f}{interval}"


def _details(claim: dict[str, Any]) -> str:
    title = f"## {claim['claim'][0].upper()}{claim['claim'][1:]}"
    head = ["setting", "compared", "first", "second", _INTERVAL, "cost left", "verdict"]
    every = [*claim["comparisons"], *claim["control_comparisons"]]
    decides = "" if claim["decides"] else " Decides nothing."
    rows = [_detail_row(each, claim["digits"]) for each in every]
    return "\n\n".join([title, f"Compared: {claim['figure']}.{decides}", _words(head, rows)])


def _detail_row(comparison: dict[str, Any], digits: int) -> list[str]:
    arms = (comparison["left"], comparison["right"])
    first, second = (Sample(**comparison["figures"][arm]).show(digits) for arm in arms)
    paired = comparison["found"] is not None and comparison["found"]["paired"]
    return [
        comparison["setting"],
        " against ".join(arms) + (", by seed" if paired else ""),
        first,
        second,
        _difference(comparison, digits),
        _costs(comparison),
        comparison["verdict"] + (f" ({comparison['reason']})" if comparison["reason"] else ""),
    ]


def _costs(comparison: dict[str, Any]) -> str:
    if comparison["over_costs"] is not None:
        return " to ".join(f"{cost:.1%}" for cost in comparison["over_costs"])
    means = [comparison["cost_left"][arm]["mean"] for arm in (comparison["left"], comparison["right"])]
    return " / ".join(MISSING if mean is None else f"{mean:.1%}" for mean in means)


def _run_table(result: dict[str, Any]) -> str:
    """Return a line for each kind of runs, setting and λ: means over its seeds."""
    runs = result["runs"]
    rows = []
    kinds = {(run["setting"], run["arm"], run["weight"]) for run in runs}
    for setting, arm, weight in sorted(kinds, key=lambda kind: (int(kind[0][1:]), kind[1], kind[2] or 0.0)):
        same = [run for run in runs if (run["setting"], run["arm"], run["weight"]) == (setting, arm, weight)]
        chosen = sorted({f"{value:g}" for run in same for value in run["chosen"].values()})
        settled = "settled" if any(run["settled_step"] is None for run in same) else "settled_step"
        differ = "gates_that_differ"
        rows.append(
            [
                setting,
                arm,
                MISSING if weight is None else f"{weight:g}",
                ", ".join(chosen) or MISSING,
                ", ".join(str(run["seed"]) for run in same),
                *(_mean(same, "score", 2), _mean(same, "cost", 1, 100), _mean(same, "params", 1, 100)),
                _mean(same, settled, 0) + (" epochs" if settled == "settled" else ""),
                *(_mean(same, "unevenness", 3), _mean(same, differ, 0), _mean(same, "closed_at_start", 1, 100)),
                ", ".join(dict.fromkeys(_made_with(run["made_with"]) for run in same)),
            ]
        )
    head = ["setting", "kind", "λ", "chosen", "seeds", "score", "cost left, %", "parameters left, %", "settled"]
    head += ["unevenness", "gates that differ with W = 0", "closed at the start, %", "made with"]
    return markdown_grid(head, rows, is_number=[False, False, True, True, False, *[True] * 7, False])


def _mean(runs: Sequence[dict[str, Any]], name: str, digits: int, scale: float = 1.0) -> str:
    found = Sample.of([scale * run[name] for run in runs if run[name] is not None])
    return found.show(digits).partition(" (n")[0]


def _made_with(versions: dict[str, str | None]) -> str:
    """Return the commit; where a run was not made from one, depl0's version."""
    if versions.get("commit"):
        return str(versions["commit"])[:12]
    return f"depl0 {versions['depl0']}" if versions.get("depl0") else MISSING


def write_claims(result: dict[str, Any], folder: Path, title: str) -> str:
    """Write ``README.md``, ``claims.json`` and, where there are several λ, the figure; return the page."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder.", hint="choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    beside = sorted(file.name for file in folder.glob("*.md") if file.name not in ("README.md", "note.md"))
    note = folder / "note.md"
    text = page(result, title, beside, note.read_text(encoding="utf-8").strip() if note.is_file() else "")
    write_json(folder / "claims.json", result)
    atomic_write(folder / "README.md", text.encode())
    if curves_of(result):
        atomic_write(folder / f"{FIGURE}.svg", draw(result))
    return text
