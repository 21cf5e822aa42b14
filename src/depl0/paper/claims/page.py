"""The page of the claims: verdicts, one line for each setting, all comparisons, and the runs with what made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depl0._util.io import write_whole
from depl0.app.studies.measures import made_with_note
from depl0.app.studies.study import write_json
from depl0.app.table import MISSING, markdown_grid
from depl0.errors import InputError
from depl0.paper.claims.judge import overall
from depl0.paper.claims.statistics import CONFIDENCE, Sample

_INTERVAL = f"in favour of the first ({CONFIDENCE:.0%} interval)"


def page(result: dict[str, Any]) -> str:
    """Return the text of ``README.md``."""
    claims = result["claims"]
    rows = [
        [claim["claim"], claim["verdict"], _settings_of(claim), f"{claim['control']}: {claim['control_verdict']}"]
        for claim in claims
    ]
    parts = [
        "# The paper's claims, judged by runs",
        f"Written by `depl0 paper claims` from {len(result['runs'])} finished runs. Dep-L0 is `{result['method']}`; "
        f"the control is Dep-L0 with `{result['control']}`, whose gates know nothing of each other. What the control "
        "does as well is not due to the dependency.",
        _words(["claim", "verdict", "settings", "and the control W = 0?"], rows),
        "One line for each setting; where several kinds of runs are compared there, the one that speaks most against "
        "the claim:",
        _words(["claim", "setting", "compared", _INTERVAL, "seeds", "verdict"], [r for c in claims for r in _lines(c)]),
        "## How it is judged",
        result["rule"],
        "## Settings",
        "\n".join(f"- **{name}**: {setting['description']}" for name, setting in result["settings"].items()),
        *(_details(claim) for claim in claims),
        "## Runs",
        "Converged: the epoch in which the search noticed that its gates had come to rest. Settled: the first epoch "
        "after which at most 1 % of them differ from the final set. Unevenness: the standard deviation over layers of "
        "the share of channels that is kept. Made with: the commit, where depl0 ran from one.",
        _run_table(result),
        *made_with_note(result["made_with"]),
    ]
    if result["left_out"]:
        runs = "1 run is" if result["left_out"] == 1 else f"{result['left_out']} runs are"
        parts.append(f"{runs} left out: not finished, or of another method.")
    return "\n\n".join(parts) + "\n"


def _words(head: list[str], rows: list[list[str]]) -> str:
    return markdown_grid(head, rows, is_number=[False] * len(head))


def _settings_of(claim: dict[str, Any]) -> str:
    """Say in how many settings the claim holds, does not, or is open."""
    verdicts = [overall(each["verdict"] for each in found) for found in _by_setting(claim).values()]
    counts = {verdict: verdicts.count(verdict) for verdict in ("confirmed", "not confirmed", "open")}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "none"


def _by_setting(claim: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for comparison in claim["comparisons"]:
        found.setdefault(comparison["setting"], []).append(comparison)
    return found


def _lines(claim: dict[str, Any]) -> list[list[str]]:
    """Return one line for each setting of a claim: of decided comparisons, the one that is least in its favour."""
    lines = []
    for setting, comparisons in _by_setting(claim).items():
        decided = [each for each in comparisons if each["verdict"] != "open"] or comparisons
        worst = min(decided, key=lambda each: float(each["difference_in_favour_of_left"]))
        others = f" (and {len(comparisons) - 1} more)" if len(comparisons) > 1 else ""
        lines.append(
            [
                claim["claim"],
                setting,
                f"{worst['left']} against {worst['right']}{others}",
                _difference(worst, claim["digits"]),
                str(_seeds(worst)),
                overall(each["verdict"] for each in comparisons) + (f" ({worst['reason']})" if worst["reason"] else ""),
            ]
        )
    return lines or [[claim["claim"], MISSING, "no two kinds of runs", MISSING, MISSING, "open"]]


def _seeds(comparison: dict[str, Any]) -> int:
    return min(int(sample["n"]) for sample in comparison["figures"].values())


def _difference(comparison: dict[str, Any], digits: int) -> str:
    low, high = comparison["interval"]
    interval = "" if low is None else f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"{comparison['difference_in_favour_of_left']:+.{digits}f}{interval}"


def _details(claim: dict[str, Any]) -> str:
    title = f"## {claim['claim'][0].upper()}{claim['claim'][1:]}"
    if not claim["comparisons"]:
        return f"{title}\n\nNo two kinds of runs to compare: open."
    head = ["setting", "compared", "first", "second", _INTERVAL, "cost left", "verdict"]
    tables = [_words(head, [_detail_row(each, claim["digits"]) for each in claim["comparisons"]])]
    if claim["control_comparisons"]:
        asked = [_detail_row(each, claim["digits"]) for each in claim["control_comparisons"]]
        tables.append(f"And the control ({claim['control']}?):\n\n{_words(head, asked)}")
    return "\n\n".join([title, f"Compared: {claim['figure']}.", *tables])


def _detail_row(comparison: dict[str, Any], digits: int) -> list[str]:
    arms = (comparison["left"], comparison["right"])
    first, second = (Sample(**comparison["figures"][arm]).show(digits) for arm in arms)
    reason = f" ({comparison['reason']})" if comparison["reason"] else ""
    return [
        comparison["setting"],
        " against ".join(arms) + (", by seed" if comparison["paired"] else ""),
        first,
        second,
        _difference(comparison, digits),
        _costs(comparison),
        comparison["verdict"] + reason,
    ]


def _costs(comparison: dict[str, Any]) -> str:
    if comparison["over_costs"] is not None:
        return " to ".join(f"{cost:.1%}" for cost in comparison["over_costs"])
    means = [comparison["cost_left"][arm]["mean"] for arm in (comparison["left"], comparison["right"])]
    return " / ".join(MISSING if mean is None else f"{mean:.1%}" for mean in means)


def _run_table(result: dict[str, Any]) -> str:
    head = ["run", "setting", "kind", "made with", "seed", "score", "cost left", "converged", "settled", "unevenness"]
    rows = [
        [
            run["label"],
            run["setting"],
            run["arm"],
            _made_with(run["made_with"]),
            str(run["seed"]),
            f"{run['score']:.2f}",
            f"{run['cost']:.1%}",
            MISSING if run["converged"] is None else f"{run['converged']:.3g}",
            MISSING if run["settled"] is None else f"{run['settled']:g}",
            MISSING if run["unevenness"] is None else f"{run['unevenness']:.3f}",
            MISSING if run["closed_at_start"] is None else f"{run['closed_at_start']:.1%}",
        ]
        for run in result["runs"]
    ]
    return markdown_grid([*head, "closed at the start"], rows, is_number=[False] * 4 + [True] * 7)


def _made_with(versions: dict[str, str | None]) -> str:
    """Return the commit; where a run was not made from one, depl0's version."""
    if versions.get("commit"):
        return str(versions["commit"])[:12]
    return f"depl0 {versions['depl0']}" if versions.get("depl0") else MISSING


def write_claims(result: dict[str, Any], folder: Path) -> None:
    """Write ``README.md`` and ``claims.json``."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder.", hint="choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "claims.json", result)
    write_whole(folder / "README.md", page(result).encode())
