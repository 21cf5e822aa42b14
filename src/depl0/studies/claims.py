"""``depl0 claims``: what the paper claims, judged by runs.

Every claim is a comparison of two kinds of runs that have everything else in common, setting by setting: once with
L0-HC (or what the claim is about), and once with the control, Dep-L0 whose gates know nothing of each other.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from depl0._atomic import write_whole
from depl0._table import MISSING, markdown_grid
from depl0.errors import InputError
from depl0.studies.claim_runs import CONTROL, L0_HC, ClaimRun, describe_setting, find_runs, read_claim_run
from depl0.studies.measures import made_with, made_with_note
from depl0.studies.study import write_json

Verdict: TypeAlias = Literal["confirmed", "not confirmed", "open"]
DEFAULT_CONTROL = "gates.generator=bias"
LEAST_RUNS = 3
ERRORS = 2.0
"""standard errors that a difference must exceed"""
EQUAL_COST = 0.02
"""by how much the shares of the cost that are left may differ for accuracies to be compared"""
MARGIN = 0.5
"""points (of other metrics: percent of the value) that "as good as" may be worse"""

RULE = (
    "A claim is *confirmed* in a setting if the mean difference is in its favour by more than "
    f"{ERRORS:g} standard errors (√(s₁²/n₁ + s₂²/n₂)), *open* if there are fewer than {LEAST_RUNS} runs of either kind "
    f"or, where runs must cost the same, the mean costs differ by more than {100 * EQUAL_COST:g} points, and *not "
    "confirmed* otherwise. Of several settings, all must confirm; settings that are open do not count. "
    f"“As good as” is confirmed if the difference is above −{MARGIN:g} points (of a metric without percent: "
    f"−{MARGIN:g} % of its value) with the same certainty. ± is the sample standard deviation over n seeds; of a "
    "difference, its standard error."
)


@final
@dataclass(frozen=True)
class Sample:
    """One figure of the runs of one kind in one setting."""

    n: int
    mean: float | None
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return number, mean and sample standard deviation."""
        mean = statistics.fmean(values) if values else None
        return cls(len(values), mean, statistics.stdev(values) if len(values) > 1 else None)

    def show(self, digits: int) -> str:
        """Return mean ± deviation (n)."""
        if self.mean is None:
            return MISSING
        spread = "" if self.sd is None else f" ± {self.sd:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} (n = {self.n})"


@final
@dataclass(frozen=True)
class Comparison:
    """Two kinds of runs in one setting: by how much the first is better."""

    setting: str
    left: str
    right: str
    figures: dict[str, Sample]
    """of ``left`` and ``right``"""
    costs: dict[str, Sample]
    difference: float | None
    """in favour of ``left``"""
    error: float | None
    verdict: Verdict
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "setting": self.setting,
            "left": self.left,
            "right": self.right,
            "figures": {arm: vars(sample) for arm, sample in self.figures.items()},
            "cost_left": {arm: vars(sample) for arm, sample in self.costs.items()},
            "difference_in_favour_of_left": self.difference,
            "standard_error": self.error,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@final
@dataclass(frozen=True)
class Claim:
    """What is claimed, and which comparisons decide."""

    text: str
    figure: str
    """what is compared, in words"""
    value: Callable[[ClaimRun], float | None]
    """larger is better"""
    pairs: Callable[[Sequence[str], str], list[tuple[str, str]]]
    """(kinds of runs that there are, the method) -> which two are compared"""
    equal_cost: bool
    digits: int = 2
    as_good: bool = False

    def against_control(self, arms: Sequence[str], method: str) -> list[tuple[str, str]]:
        """Return what is compared with the control: the claimed ones themselves."""
        left = list(dict.fromkeys(left for left, _ in self.pairs(arms, method)))
        return [(each, CONTROL) for each in left or [method]]


def _score(run: ClaimRun) -> float:
    return run.score if run.metric.higher_is_better else -run.score


def _with_l0_hc(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    return [(method, L0_HC)]


def _with_other_generators(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    others = [arm for arm in arms if arm.startswith("dep-l0:") and arm not in (method, f"{method}:backward")]
    return [(method, other) for other in others if "backward" not in other.split(":")]


CLAIMS = (
    Claim(
        "Dep-L0 beats L0-HC at equal cost", "test score of the compact network", _score, _with_l0_hc, equal_cost=True
    ),
    Claim(
        "its structure settles in fewer epochs",
        "epochs until at most 1 % of the gates differ from the final set",
        lambda run: None if run.settled is None else -run.settled,
        _with_l0_hc,
        equal_cost=False,
        digits=1,
    ),
    Claim(
        "its prune ratios are more even over layers",
        "standard deviation over layers of the kept share",
        lambda run: None if run.unevenness is None else -run.unevenness,
        _with_l0_hc,
        equal_cost=True,
        digits=3,
    ),
    Claim(
        "FC is the best generator", "test score of the compact network", _score, _with_other_generators, equal_cost=True
    ),
    Claim(
        "backward is as good as forward",
        "test score of the compact network",
        _score,
        lambda arms, method: [(f"{method}:backward", method)],
        equal_cost=True,
        as_good=True,
    ),
)


def judge(paths: Sequence[Path], method: str = "dep-l0", control: str = DEFAULT_CONTROL) -> dict[str, Any]:
    """Read runs and judge every claim by them; return what ``claims.json`` holds."""
    folders = find_runs(paths)
    runs = [run for path in folders if (run := read_claim_run(path, control)) is not None]
    if not runs:
        raise InputError(
            f"none of the {len(folders)} runs is finished and of Dep-L0 or L0-HC.", hint="finish them with --resume."
        )
    names = {setting: f"S{number}" for number, setting in enumerate(_settings(runs), start=1)}
    runs = [dataclasses.replace(run, setting=names[run.setting]) for run in runs]
    arms = sorted({run.arm for run in runs})
    if method not in arms:
        raise InputError(f"there is no run of {method!r}.", hint=f"--method is one of {', '.join(arms)}.")
    return {
        "study": "claims",
        "method": method,
        "control": control,
        "rule": RULE,
        "claims": [_judge_claim(claim, runs, arms, method) for claim in CLAIMS],
        "settings": {name: describe_setting(setting) for setting, name in names.items()},
        "runs": [run.to_dict() for run in runs],
        "left_out": len(folders) - len(runs),
        "made_with": made_with(run.path for run in runs),
    }


def _settings(runs: Sequence[ClaimRun]) -> list[str]:
    return list(dict.fromkeys(run.setting for run in runs))


def _judge_claim(claim: Claim, runs: Sequence[ClaimRun], arms: Sequence[str], method: str) -> dict[str, Any]:
    settings = _settings(runs)

    def compared(pairs: list[tuple[str, str]], as_good: bool) -> list[Comparison]:
        found = [compare(claim, runs, setting, *pair, as_good=as_good) for setting in settings for pair in pairs]
        return [each for each in found if each.difference is not None]

    itself = compared(claim.pairs(arms, method), claim.as_good)
    control = compared(claim.against_control(arms, method), as_good=False)
    return {
        "claim": claim.text,
        "figure": claim.figure,
        "verdict": overall(itself),
        "comparisons": [each.to_dict() for each in itself],
        "control_verdict": overall(control),
        "control_comparisons": [each.to_dict() for each in control],
        "digits": claim.digits,
    }


def overall(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict over all settings: those that are open do not count, all others must confirm."""
    decided = [each.verdict for each in comparisons if each.verdict != "open"]
    if not decided:
        return "open"
    return "confirmed" if all(verdict == "confirmed" for verdict in decided) else "not confirmed"


def compare(
    claim: Claim, runs: Sequence[ClaimRun], setting: str, left: str, right: str, *, as_good: bool
) -> Comparison:
    """Compare two kinds of runs in one setting."""
    by_arm = {arm: [run for run in runs if run.setting == setting and run.arm == arm] for arm in (left, right)}
    values = {arm: [v for run in found if (v := claim.value(run)) is not None] for arm, found in by_arm.items()}
    ours, theirs = (Sample.of(values[arm]) for arm in (left, right))
    costs = {arm: Sample.of([run.cost for run in found]) for arm, found in by_arm.items()}
    shown = {arm: Sample.of([abs(value) for value in found]) for arm, found in values.items()}
    difference = None if ours.mean is None or theirs.mean is None else ours.mean - theirs.mean
    error = None
    if ours.sd is not None and theirs.sd is not None:
        error = math.sqrt(ours.sd**2 / ours.n + theirs.sd**2 / theirs.n)
    margin = _margin(runs, theirs) if as_good else 0.0
    verdict, reason = _verdict(claim, (ours, theirs), (costs[left], costs[right]), difference, error, margin)
    return Comparison(setting, left, right, shown, costs, difference, error, verdict, reason)


def _margin(runs: Sequence[ClaimRun], theirs: Sample) -> float:
    if runs[0].metric.unit == "%":
        return MARGIN
    return 0.0 if theirs.mean is None else MARGIN / 100 * abs(theirs.mean)


def _verdict(
    claim: Claim,
    samples: tuple[Sample, Sample],
    costs: tuple[Sample, Sample],
    difference: float | None,
    error: float | None,
    margin: float,
) -> tuple[Verdict, str]:
    if difference is None or error is None or min(sample.n for sample in samples) < LEAST_RUNS:
        return "open", f"fewer than {LEAST_RUNS} runs"
    apart = abs((costs[0].mean or 0.0) - (costs[1].mean or 0.0))
    if claim.equal_cost and apart > EQUAL_COST:
        return "open", f"costs differ by {100 * apart:.1f} points"
    if difference + margin > ERRORS * error:
        return "confirmed", ""
    return "not confirmed", "the opposite holds" if difference < -ERRORS * error else ""


# -- the page --------------------------------------------------------------------------------------------------------


def page(result: dict[str, Any]) -> str:
    """Return the text of ``README.md``."""
    claims = result["claims"]
    head = ["claim", "verdict", "against the control W = 0", "figures"]
    rows = [
        [claim["claim"], f"{claim['verdict']}", claim["control_verdict"], "; ".join(map(_short, claim["comparisons"]))]
        for claim in claims
    ]
    parts = [
        "# The paper's claims, judged by runs",
        f"Written by `depl0 claims` from {len(result['runs'])} finished runs. Dep-L0 is `{result['method']}`; the "
        f"control is Dep-L0 with `{result['control']}`, whose gates know nothing of each other. What the control does "
        "as well is not due to the dependency.",
        markdown_grid(head, rows, is_number=[False] * 4),
        result["rule"],
        "## Settings",
        "\n".join(f"- **{name}**: {text}" for name, text in result["settings"].items()),
        *(_details(claim) for claim in claims),
        "## Runs",
        _run_table(result),
        *made_with_note(result["made_with"]),
    ]
    if result["left_out"]:
        parts.append(f"{result['left_out']} runs are left out: not finished, or of another method.")
    return "\n\n".join(parts) + "\n"


def _short(comparison: dict[str, Any]) -> str:
    """Return one comparison in a few words."""
    error = comparison["standard_error"]
    spread = "" if error is None else f" ± {error:.2g}"
    least = min(sample["n"] for sample in comparison["figures"].values())
    difference = f"{comparison['difference_in_favour_of_left']:+.3g}{spread}"
    pair = f"{comparison['left']} − {comparison['right']}"
    return f"{comparison['setting']}, {pair}: {difference} (n ≥ {least})"


def _details(claim: dict[str, Any]) -> str:
    both = [*claim["comparisons"], *claim["control_comparisons"]]
    title = f"## {claim['claim'][0].upper()}{claim['claim'][1:]}"
    if not both:
        return f"{title}\n\nNo two kinds of runs to compare: open."
    rows = [_detail_row(each, claim["digits"]) for each in both]
    head = ["setting", "compared", "first", "second", "in favour of the first", "cost left", "verdict"]
    return f"{title}\n\nCompared: {claim['figure']}.\n\n{markdown_grid(head, rows, is_number=[False] * 7)}"


def _detail_row(comparison: dict[str, Any], digits: int) -> list[str]:
    arms = (comparison["left"], comparison["right"])
    first, second = (Sample(**comparison["figures"][arm]).show(digits) for arm in arms)
    difference, error = comparison["difference_in_favour_of_left"], comparison["standard_error"]
    reason = f" ({comparison['reason']})" if comparison["reason"] else ""
    return [
        comparison["setting"],
        " against ".join(arms),
        first,
        second,
        f"{difference:+.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}"),
        " / ".join(f"{comparison['cost_left'][arm]['mean']:.1%}" for arm in arms),
        comparison["verdict"] + reason,
    ]


def _run_table(result: dict[str, Any]) -> str:
    head = ["run", "setting", "kind", "seed", "score", "cost left", "settled", "unevenness", "closed at the start"]
    rows = [
        [
            run["label"],
            run["setting"],
            run["arm"],
            str(run["seed"]),
            f"{run['score']:.2f}",
            f"{run['cost']:.1%}",
            MISSING if run["settled"] is None else f"{run['settled']:g}",
            MISSING if run["unevenness"] is None else f"{run['unevenness']:.3f}",
            MISSING if run["closed_at_start"] is None else f"{run['closed_at_start']:.1%}",
        ]
        for run in result["runs"]
    ]
    return markdown_grid(head, rows, is_number=[False] * 3 + [True] * 6)


def write_claims(result: dict[str, Any], folder: Path) -> None:
    """Write ``README.md`` and ``claims.json``."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder.", hint="choose another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "claims.json", result)
    write_whole(folder / "README.md", page(result).encode())
