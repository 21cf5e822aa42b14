"""Every claim is a comparison of two kinds of runs that have everything else in common, setting by setting.

Once with what the claim is about, L0-HC for example, and once with the control W = 0: Dep-L0 whose gates know nothing
of each other. What the control does as well is not due to the dependency.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from depl0.app.studies.measures import of_all
from depl0.errors import InputError
from depl0.paper.claims.runs import (
    CONTROL,
    L0_HC,
    ClaimRun,
    find_runs,
    read_claim_run,
    read_recorded,
    without_repeats,
)
from depl0.paper.claims.settings import Setting
from depl0.paper.claims.statistics import CONFIDENCE, Difference, Sample, difference, mean_over, overlap

Verdict: TypeAlias = Literal["confirmed", "not confirmed", "open"]
Pairs: TypeAlias = Callable[[Sequence[str], str], list[tuple[str, str]]]
"""(kinds of runs that there are, the method) -> which two are compared"""
DEFAULT_CONTROL = "gates.generator=bias"
"""the generator whose weights between gates are held at 0"""
LEAST_SEEDS = 3
EQUAL = 0.02
"""by how much the shares of the cost that are left, or of the gates that start closed, may differ to count as equal"""
MARGIN = 0.5
"""points (of other metrics: percent of the value) that "as good as" may be worse"""

RULE = f"""\
- A claim is *confirmed* in a setting if the {CONFIDENCE:.0%} interval of the mean difference is wholly on its side,
  *open* with fewer than {LEAST_SEEDS} seeds of either kind, and *not confirmed* otherwise: these runs do not show it.
  Where the opposite holds, it is said. Of several settings, all must confirm; those that are open do not count.
- Where both kinds of runs have the same seeds, the difference is taken seed by seed (a paired comparison), because runs
  of one seed see the same images in the same order; otherwise the two means are independent (Welch). Intervals are
  Student's, so that few seeds make them wide: 4.3 standard errors to each side for three pairs, 2.8 for five.
  Several runs of one seed count as one, by their mean.
- Where runs must cost the same, a comparison is open if the mean costs differ by more than {100 * EQUAL:g} points. With
  a fixed λ they usually do. Where a setting was run with at least two λ of each kind, the figure is interpolated over
  the cost by straight lines, and its mean over the range of costs that both kinds cover is compared, seed by seed; it
  is open where no cost is covered by both.
- “As good as” is confirmed if the interval is above −{MARGIN:g} points (of a metric without percent: −{MARGIN:g} % of
  its value).
- The control W = 0 is asked in the settings that the claim itself was compared in. About the number of epochs it
  decides nothing where the shares of the gates that start closed differ by more than {100 * EQUAL:g} points.
- ± is the sample standard deviation over n seeds."""


@final
@dataclass(frozen=True)
class Comparison:
    """Two kinds of runs in one setting, or over the λ of several: by how much the first is better."""

    setting: str
    left: str
    right: str
    figures: dict[str, Sample]
    """of ``left`` and ``right``"""
    costs: dict[str, Sample]
    overlap: tuple[float, float] | None
    """the costs over which the figures are means, on average over seeds; None: each run's own cost"""
    found: Difference
    """in favour of ``left``"""
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
            "over_costs": None if self.overlap is None else list(self.overlap),
            "difference_in_favour_of_left": self.found.mean,
            "standard_error": self.found.error,
            "interval": [self.found.low, self.found.high],
            "paired": self.found.paired,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@final
@dataclass(frozen=True)
class Claim:
    """What is claimed, which comparisons decide, and what is asked of the control."""

    text: str
    figure: str
    """what is compared, in words"""
    value: Callable[[ClaimRun], float | None]
    """larger is better"""
    pairs: Pairs
    control: str
    """what the control is asked, in words"""
    control_pairs: Pairs
    equal_cost: bool
    digits: int = 2
    as_good: bool = False
    """whether both are asked for "as good as" instead of "better than" """
    start_matters: bool = False
    """whether the control decides nothing where it starts with other gates closed"""


def _score(run: ClaimRun) -> float:
    return run.score if run.metric.higher_is_better else -run.score


def _with_l0_hc(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    return [(method, L0_HC)]


def _with_control(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    return [(method, CONTROL)]


def _with_other_generators(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    others = [arm for arm in arms if arm.startswith("dep-l0:") and arm not in (method, f"{method}:backward")]
    return [(method, other) for other in others if "backward" not in other.split(":") and "=" not in other]


_SCORE = "test score of the compact network"
CLAIMS = (
    Claim("Dep-L0 beats L0-HC at equal cost", _SCORE, _score, _with_l0_hc, "beats W = 0", _with_control, True),
    Claim(
        "its structure settles in fewer epochs",
        "epochs until at most 1 % of the gates differ from the final set",
        lambda run: None if run.settled is None else -run.settled,
        _with_l0_hc,
        "settles sooner than W = 0 from the same start",
        _with_control,
        equal_cost=False,
        digits=1,
        start_matters=True,
    ),
    Claim(
        "its prune ratios are more even over layers",
        "standard deviation over layers of the kept share",
        lambda run: None if run.unevenness is None else -run.unevenness,
        _with_l0_hc,
        "more even than W = 0",
        _with_control,
        equal_cost=True,
        digits=3,
    ),
    Claim(
        "FC is the best generator",
        _SCORE,
        _score,
        _with_other_generators,
        "beats W = 0 where generators were compared",
        _with_control,
        equal_cost=True,
    ),
    Claim(
        "backward is as good as forward",
        _SCORE,
        _score,
        lambda arms, method: [(f"{method}:backward", method)],
        "W = 0 is as good as forward too, so that direction cannot matter",
        lambda arms, method: [(CONTROL, method)],
        equal_cost=True,
        as_good=True,
    ),
)


def judge(paths: Sequence[Path], method: str = "dep-l0", control: str = DEFAULT_CONTROL) -> dict[str, Any]:
    """Read runs (folders, or files that an earlier call wrote) and judge every claim; return what is written."""
    folders = find_runs([path for path in paths if not path.is_file()])
    read = [run for path in folders if (run := read_claim_run(path, control)) is not None]
    recorded = [run for path in paths if path.is_file() for run in read_recorded(path, control)]
    runs = without_repeats([*recorded, *read])
    if not runs:
        raise InputError(
            f"none of the {len(folders)} runs is finished and of Dep-L0 or L0-HC.", hint="finish them with --resume."
        )
    arms = sorted({run.arm for run in runs})
    if method not in arms:
        raise InputError(f"there is no run of {method!r}.", hint=f"--method is one of {', '.join(arms)}.")
    names = {setting: f"S{number}" for number, setting in enumerate(dict.fromkeys(r.setting for r in runs), start=1)}
    return {
        "study": "claims",
        "method": method,
        "control": control,
        "rule": RULE,
        "claims": [_judge_claim(claim, runs, names, arms, method) for claim in CLAIMS],
        "settings": {
            name: {"description": setting.description, "recipe": setting.fields()} for setting, name in names.items()
        },
        "runs": [run.to_dict(names[run.setting]) for run in runs],
        "left_out": len(folders) - len(read),
        "made_with": of_all(run.made_with for run in runs),
    }


def _judge_claim(
    claim: Claim, runs: Sequence[ClaimRun], names: Mapping[Setting, str], arms: Sequence[str], method: str
) -> dict[str, Any]:
    itself = [found for pair in claim.pairs(arms, method) for found in compare_all(claim, runs, names, *pair)]
    asked = {each.setting for each in itself}
    control = [
        found
        for pair in claim.control_pairs(arms, method)
        for found in compare_all(claim, runs, names, *pair, control=True)
        if found.setting in asked
    ]
    return {
        "claim": claim.text,
        "figure": claim.figure,
        "verdict": overall(each.verdict for each in itself),
        "comparisons": [each.to_dict() for each in itself],
        "control": claim.control,
        "control_verdict": overall(each.verdict for each in control),
        "control_comparisons": [each.to_dict() for each in control],
        "digits": claim.digits,
    }


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several comparisons: those that are open do not count, all others must confirm.

    >>> overall(["confirmed", "open"]), overall(["confirmed", "not confirmed"]), overall(["open"])
    ('confirmed', 'not confirmed', 'open')
    """
    decided = set(verdicts) - {"open"}
    return "open" if not decided else "confirmed" if decided == {"confirmed"} else "not confirmed"


# -- comparisons -----------------------------------------------------------------------------------------------------


def compare_all(
    claim: Claim,
    runs: Sequence[ClaimRun],
    names: Mapping[Setting, str],
    left: str,
    right: str,
    *,
    control: bool = False,
) -> list[Comparison]:
    """Compare two kinds of runs in every setting that has both; over several λ together, where costs must be equal."""
    found: list[Comparison] = []
    for settings in _compared_together(claim, runs, names, (left, right)):
        ours = [run for run in runs if run.setting in settings and run.arm in (left, right)]
        name = "+".join(names[setting] for setting in settings)
        if len(settings) > 1:
            comparison = _over_costs(claim, ours, name, left, right)
        else:
            comparison = _in_setting(claim, ours, name, left, right, same_start=control and claim.start_matters)
        found += [] if comparison is None else [comparison]
    return found


def _compared_together(
    claim: Claim, runs: Sequence[ClaimRun], names: Mapping[Setting, str], arms: tuple[str, str]
) -> list[tuple[Setting, ...]]:
    """Return the settings one by one; those that differ in λ alone together, if both kinds have at least two."""
    curves: dict[str, list[Setting]] = {}
    for setting in names:
        if claim.equal_cost and (curve := setting.for_any_penalty()) is not None:
            curves.setdefault(curve, []).append(setting)

    def is_curve(settings: Sequence[Setting]) -> bool:
        return all(len({run.setting for run in runs if run.setting in settings and run.arm == a}) > 1 for a in arms)

    together = [tuple(settings) for settings in curves.values() if is_curve(settings)]
    taken = {setting for settings in together for setting in settings}
    return [*((setting,) for setting in names if setting not in taken), *together]


def _in_setting(
    claim: Claim, runs: Sequence[ClaimRun], name: str, left: str, right: str, *, same_start: bool
) -> Comparison | None:
    values = {arm: _by_seed(runs, arm, claim.value) for arm in (left, right)}
    found = difference(values[left], values[right])
    if found is None:
        return None
    costs = {arm: Sample.of(list(_by_seed(runs, arm, lambda run: run.cost).values())) for arm in values}
    verdict, reason = _verdict(claim, found, min(map(len, values.values())), runs)
    apart = abs((costs[left].mean or 0.0) - (costs[right].mean or 0.0))
    starts = _starts(runs, left, right) if claim.start_matters else ""
    if verdict != "open" and claim.equal_cost and apart > EQUAL:
        verdict, reason = "open", f"costs differ by {100 * apart:.1f} points"
    elif verdict != "open" and starts:
        verdict, reason = ("open", starts) if same_start else (verdict, starts)
    return Comparison(name, left, right, _shown(values), costs, None, found, verdict, reason)


def _over_costs(claim: Claim, runs: Sequence[ClaimRun], name: str, left: str, right: str) -> Comparison | None:
    """Compare at equal cost: for each seed, the means of both curves over the costs that both of them cover."""
    curves = {arm: _curves(claim, runs, arm) for arm in (left, right)}
    values: dict[str, dict[int, float]] = {left: {}, right: {}}
    covered = []
    for seed in curves[left].keys() & curves[right].keys():
        both = overlap(curves[left][seed], curves[right][seed])
        if both is not None:
            covered.append(both)
            for arm in values:
                values[arm][seed] = mean_over(curves[arm][seed], *both)
    costs = {arm: Sample.of([run.cost for run in runs if run.arm == arm]) for arm in values}
    found = difference(values[left], values[right])
    if found is None:
        everything = {arm: _by_seed(runs, arm, claim.value) for arm in values}
        anyhow = difference(everything[left], everything[right])
        if anyhow is None:
            return None
        reason = "no cost is covered by both kinds"
        return Comparison(name, left, right, _shown(everything), costs, None, anyhow, "open", reason)
    over = (statistics.fmean(low for low, _ in covered), statistics.fmean(high for _, high in covered))
    verdict, reason = _verdict(claim, found, len(covered), runs)
    return Comparison(name, left, right, _shown(values), costs, over, found, verdict, reason)


def _by_seed(runs: Sequence[ClaimRun], arm: str, value: Callable[[ClaimRun], float | None]) -> dict[int, float]:
    """Return a kind's values by seed, several runs of one seed by their mean."""
    found: dict[int, list[float]] = {}
    for run in runs:
        if run.arm == arm and (number := value(run)) is not None:
            found.setdefault(run.seed, []).append(number)
    return {seed: statistics.fmean(numbers) for seed, numbers in sorted(found.items())}


def _curves(claim: Claim, runs: Sequence[ClaimRun], arm: str) -> dict[int, dict[float, float]]:
    """Return the value over the cost for each seed that has at least two costs."""
    found: dict[int, dict[float, list[float]]] = {}
    for run in runs:
        if run.arm == arm and (number := claim.value(run)) is not None:
            found.setdefault(run.seed, {}).setdefault(run.cost, []).append(number)
    return {
        seed: {cost: statistics.fmean(numbers) for cost, numbers in curve.items()}
        for seed, curve in found.items()
        if len(curve) > 1
    }


def _shown(values: Mapping[str, Mapping[int, float]]) -> dict[str, Sample]:
    """Return the figures as they are read: a value that counts negatively because less is better, without its sign."""
    return {arm: Sample.of([abs(value) for value in found.values()]) for arm, found in values.items()}


def _verdict(claim: Claim, found: Difference, seeds: int, runs: Sequence[ClaimRun]) -> tuple[Verdict, str]:
    if found.low is None or found.high is None or seeds < LEAST_SEEDS:
        return "open", f"fewer than {LEAST_SEEDS} seeds"
    margin = 0.0
    if claim.as_good:
        in_percent = runs[0].metric.unit == "%"
        margin = MARGIN if in_percent else MARGIN / 100 * statistics.fmean(abs(run.score) for run in runs)
    if found.low > -margin:
        return "confirmed", ""
    return "not confirmed", "the opposite holds" if found.high < -margin else ""


def _starts(runs: Sequence[ClaimRun], left: str, right: str) -> str:
    """Say that two kinds do not start with as many gates closed; nothing: they do."""
    closed = {arm: [run.closed_at_start for run in runs if run.arm == arm] for arm in (left, right)}
    if any(share is None for shares in closed.values() for share in shares):
        return "how many gates start closed is not known"
    first, second = (statistics.fmean(share or 0.0 for share in closed[arm]) for arm in (left, right))
    return "" if abs(first - second) <= EQUAL else f"{first:.1%} against {second:.1%} of the gates start closed"
