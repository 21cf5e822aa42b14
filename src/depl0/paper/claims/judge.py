"""Every claim is a comparison of two kinds of runs that have everything else in common, setting by setting.

Once with what the claim is about, L0-HC for example, and once with controls: Dep-L0 from which the dependency was taken
away. What a control does as well is not due to the dependency.
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
    CONST,
    CONTROL,
    CONTROLS,
    L0_HC,
    START,
    ClaimRun,
    find_runs,
    read_claim_run,
    read_recorded,
    without_repeats,
)
from depl0.paper.claims.settings import Setting
from depl0.paper.claims.statistics import CONFIDENCE, NEAR, STEP, Difference, Sample, common_costs, difference, mean_at

Verdict: TypeAlias = Literal["confirmed", "refuted in this setting", "too weak to tell", "open"]
Pairs: TypeAlias = Callable[[Sequence[str], str], list[tuple[str, str]]]
"""(kinds of runs that there are, the method) -> which two are compared"""
DEFAULT_CONTROL = "gates.generator=bias"
"""the generator whose weights between gates are held at 0"""
LEAST_SEEDS, LEAST_LAYERS, LEAST_RANGE = 3, 5, 0.05
EQUAL = 0.02
"""by how much the shares of the cost that are left may differ to count as equal"""
MARGIN = 0.5
"""points (of other metrics: percent of the value) that "as good as" may be worse"""
GAIN, GAIN_RESNET = 0.3, 0.7
"""points by which Dep-L0 is better than L0-HC in table 1 of the paper: −0.1 against −0.4, and +0.2 against −0.5"""
EVENNESS, SOONER = 0.05, 0.2
"""claimed effects on the deviation over layers, and on the steps (a share of the second kind's)"""

RULE = f"""\
- By the {CONFIDENCE:.0%} interval of the mean difference, a claim is *confirmed* in a setting if the interval is above
  0, *refuted in this setting* if it is below the claimed effect, and *too weak to tell* otherwise. No verdict holds for
  another network, length of training or gate rate. Claimed effects: {GAIN:g} points for
  VGG16 and networks that the paper does not have, {GAIN_RESNET:g} for ResNets (table 1; of a metric without percent:
  percent of its value); {EVENNESS:g} of the deviation over layers; {SOONER:.0%} of the steps. “As good as” is confirmed
  if the interval is above −{MARGIN:g} points, and refuted in this setting if it is below.
- It is *open* where these runs cannot tell: fewer than {LEAST_SEEDS} seeds; fewer than {LEAST_LAYERS} gated layers; no
  gate of Dep-L0 that would differ with W = 0 (the treatment is inert); costs that differ. How soon gates settle is open
  with a budget, whose ramp decides it, and where gates were logged once an epoch. Even prune ratios are open on VGG16,
  for which the paper says that both methods learn a similar pattern.
- Costs are equal if their means differ by at most {100 * EQUAL:g} points. Where a kind was run with several λ, the
  figure is interpolated over the cost by straight lines, seed by seed, and the means over the costs that both kinds
  cover are compared. A cost counts only if both kinds have a run of that seed within {100 * NEAR:g} points of it, so
  that nearest runs are at most {200 * NEAR:g} points apart. A seed with fewer than {100 * LEAST_RANGE:g} points of such
  costs does not count.
- Where both kinds have the same seeds, the difference is taken seed by seed (a paired comparison), because runs of one
  seed see the same images in the same order; otherwise the two means are independent (Welch). Intervals are Student's,
  so that few seeds make them wide: 4.3 standard errors to each side for three pairs, 2.8 for five. Several runs of one
  seed count as one, by their mean.
- An effect is *due to dependency* only where Dep-L0 is better than `{CONST}` too, which has its start and step sizes
  and no information between gates; for settling also than `{START}`, L0-HC from Dep-L0's own first log α. Where
  `{CONST}` is better than L0-HC, and Dep-L0 is not better than `{CONST}`, the effect is due to start and step sizes.
- ± is the sample standard deviation over n seeds."""


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
    overlap: tuple[float, float] | None
    """the costs over which the figures are means, on average over seeds; None: each run's own cost"""
    found: Difference | None
    """in favour of ``left``; None: there is nothing to compare"""
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
            "found": None if self.found is None else vars(self.found),
            "verdict": self.verdict,
            "reason": self.reason,
        }


@final
@dataclass(frozen=True)
class Claim:
    """What is claimed, which comparisons decide, and which tell where an effect comes from."""

    text: str
    figure: str
    """what is compared, in words"""
    value: Callable[[ClaimRun], float | None]
    """larger is better"""
    effect: Callable[[ClaimRun, float], float]
    """(a run of the setting, the mean of the second kind) -> the claimed difference"""
    pairs: Pairs
    controls: Pairs
    needed: tuple[str, ...] = ()
    """what Dep-L0 must be better than for an effect to be due to dependency"""
    digits: int = 2
    as_good: bool = False
    """whether the claimed difference, which is below 0, is enough"""
    cost: Callable[[ClaimRun], float | None] = lambda run: run.cost
    unanswerable: Callable[[ClaimRun], str] = lambda run: ""
    """why a run cannot tell"""
    decides: bool = True


def _score(run: ClaimRun) -> float:
    return run.score if run.metric.higher_is_better else -run.score


def _points(run: ClaimRun, points: float) -> float:
    return points if run.metric.unit == "%" else points / 100 * abs(run.score)


def _gain(run: ClaimRun, second: float) -> float:
    return _points(run, GAIN_RESNET if "resnet" in run.setting.network else GAIN)


def _sooner(run: ClaimRun) -> float | None:
    settled = run.settled if run.settled_step is None else run.settled_step
    return None if settled is None else -settled


def _settling(run: ClaimRun) -> str:
    if run.setting.has_budget:
        return "the budget's ramp decides when gates settle"
    return "gates were logged once an epoch" if run.settled_step is None else ""


def _evenness(run: ClaimRun) -> str:
    return "the paper claims it for ResNets alone" if "vgg" in run.setting.network.lower() else ""


def _with_l0_hc(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    return [(method, L0_HC)]


def _with_controls(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    others = [CONTROL, *(name for name in CONTROLS.values() if name not in (CONST, START))]
    pairs = [(method, CONST), (CONST, L0_HC), (method, START), (START, L0_HC), *((method, name) for name in others)]
    return [*pairs, (f"{method}:backward", L0_HC)]  # the other direction decides nothing: its own claim is below


def _with_other_generators(arms: Sequence[str], method: str) -> list[tuple[str, str]]:
    others = [arm for arm in arms if arm.startswith("dep-l0:") and arm not in (method, f"{method}:backward")]
    return [(method, other) for other in others if "backward" not in other.split(":") and "=" not in other]


_SCORE = "test score of the compact network"
CLAIMS = (
    Claim("Dep-L0 beats L0-HC at equal cost", _SCORE, _score, _gain, _with_l0_hc, _with_controls, (CONST,)),
    Claim(
        "its structure settles in fewer steps",
        "steps (epochs, where gates were logged once an epoch) until at most 1 % of gates differ from the final set",
        _sooner,
        lambda run, second: SOONER * abs(second),
        _with_l0_hc,
        _with_controls,
        (CONST, START),
        digits=0,
        unanswerable=_settling,
    ),
    Claim(
        "its prune ratios are more even over layers",
        "standard deviation over gated layers of the share of closed gates",
        lambda run: None if run.unevenness is None else -run.unevenness,
        lambda run, second: EVENNESS,
        _with_l0_hc,
        _with_controls,
        (CONST,),
        digits=3,
        unanswerable=_evenness,
    ),
    Claim(
        "FC is the best generator",
        _SCORE,
        _score,
        _gain,
        _with_other_generators,
        lambda arms, method: [(method, CONTROL)],
    ),
    Claim(
        "backward is as good as forward",
        _SCORE,
        _score,
        lambda run, second: -_points(run, MARGIN),
        lambda arms, method: [(f"{method}:backward", method)],
        lambda arms, method: [(CONTROL, method)],
        as_good=True,
    ),
    Claim(
        "Dep-L0 beats L0-HC at equal parameters",
        _SCORE,
        _score,
        _gain,
        _with_l0_hc,
        _with_controls,
        cost=lambda run: run.params if run.weight is not None else None,
        decides=False,
    ),
)


def judge(
    paths: Sequence[Path],
    method: str = "dep-l0",
    control: str = DEFAULT_CONTROL,
    chosen: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Read runs (folders, or files that an earlier call wrote) and judge every claim; return what is written.

    ``chosen`` are recipe fields that were chosen for each kind of runs; ``seeds`` are those that count, where others
    were used for choices.
    """
    folders = find_runs([path for path in paths if not path.is_file()])
    read = [run for path in folders if (run := read_claim_run(path, control, chosen)) is not None]
    recorded = [run for path in paths if path.is_file() for run in read_recorded(path, control)]
    runs = [run for run in without_repeats([*recorded, *read]) if seeds is None or run.seed in seeds]
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
    itself = [found for pair in claim.pairs(arms, method) for found in compare_all(claim, runs, names, method, *pair)]
    asked = {each.setting for each in itself}
    controls = [
        found
        for pair in claim.controls(arms, method)
        for found in compare_all(claim, runs, names, method, *pair)
        if found.setting in asked
    ]
    return {
        "claim": claim.text,
        "figure": claim.figure,
        "decides": claim.decides,
        "verdict": overall(of_setting(c.verdict for c in itself if c.setting == name) for name in sorted(asked)),
        "due_to_dependency": _due(claim, itself, controls, method),
        "comparisons": [each.to_dict() for each in itself],
        "control_comparisons": [each.to_dict() for each in controls],
        "digits": claim.digits,
    }


def of_setting(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of the comparisons of one setting: those that are open do not count, all others must confirm.

    >>> of_setting(["confirmed", "open"]), of_setting(["confirmed", "too weak to tell"]), of_setting(["open"])
    ('confirmed', 'too weak to tell', 'open')
    """
    decided = set(verdicts) - {"open"}
    return next(
        (found for found in ("refuted in this setting", "too weak to tell", "confirmed") if found in decided), "open"
    )


def overall(verdicts: Iterable[Verdict]) -> str:
    """Return the verdict of several settings in words.

    >>> overall(["confirmed", "open", "open"]), overall(["open", "open"]), overall([])
    ('confirmed in 1 of 3', 'open', 'open')
    """
    found = list(verdicts)
    counts = {verdict: found.count(verdict) for verdict in ("confirmed", "refuted in this setting", "too weak to tell")}
    told = {verdict: count for verdict, count in counts.items() if count}
    whole = [verdict for verdict, count in told.items() if count == len(found)]
    parts = whole or [f"{verdict} in {count} of {len(found)}" for verdict, count in told.items()]
    return ", ".join(parts) or "open"


def _due(claim: Claim, itself: Sequence[Comparison], controls: Sequence[Comparison], method: str) -> str:
    """Say whether an effect is due to dependency, in the settings that have one."""
    told = {}
    for name in [each.setting for each in itself if claim.needed and each.verdict == "confirmed"]:
        found = {(each.left, each.right): each.verdict for each in controls if each.setting == name}
        asked = {found.get((method, control), "open") for control in claim.needed}
        if asked & {"refuted in this setting", "too weak to tell"}:
            told[name] = "no: start and step sizes" if found.get((CONST, L0_HC)) == "confirmed" else "not shown"
        else:
            told[name] = "open" if "open" in asked else "yes"
    return "; ".join(f"{name} {answer}" for name, answer in told.items())


# -- comparisons -----------------------------------------------------------------------------------------------------


def compare_all(
    claim: Claim, runs: Sequence[ClaimRun], names: Mapping[Setting, str], method: str, left: str, right: str
) -> list[Comparison]:
    """Compare two kinds of runs in every setting that has both."""
    found = []
    for setting, name in names.items():
        ours = {
            arm: [r for r in runs if r.setting == setting and r.arm == arm and claim.cost(r) is not None]
            for arm in (left, right)
        }
        if all(ours.values()):
            found.append(_compare(claim, ours, name, method))
    return found


def _compare(claim: Claim, runs: Mapping[str, Sequence[ClaimRun]], name: str, method: str) -> Comparison:
    left, right = runs
    values, over, unequal = _at_equal_cost(claim, runs)
    found = difference(values[left], values[right])
    reason = _inability(claim, runs, method) or unequal
    verdict: Verdict = "open"
    if not reason and (found is None or min(map(len, values.values())) < LEAST_SEEDS):
        reason = f"fewer than {LEAST_SEEDS} seeds"
    elif not reason and found is not None:
        claimed = claim.effect(runs[right][0], statistics.fmean(values[right].values()))
        verdict, reason = _verdict(found, claimed if claim.as_good else 0.0, claimed)
    # A figure that counts negatively, because less is better, is read without its sign.
    figures = {arm: Sample.of([abs(value) for value in by_seed.values()]) for arm, by_seed in values.items()}
    costs = {arm: Sample.of([claim.cost(run) or 0.0 for run in rows]) for arm, rows in runs.items()}
    return Comparison(name, left, right, figures, costs, over, found, verdict, reason)


def _verdict(found: Difference, least: float, claimed: float) -> tuple[Verdict, str]:
    assert found.low is not None and found.high is not None, "there are enough seeds"
    if found.low > least:
        return "confirmed", "smaller than claimed" if found.high < claimed else ""
    if found.high < claimed:
        return "refuted in this setting", "the second is better here" if found.high < least else ""
    return "too weak to tell", ""


def _inability(claim: Claim, runs: Mapping[str, Sequence[ClaimRun]], method: str) -> str:
    """Say why these runs cannot tell, whatever they show; nothing: they can."""
    every = [run for rows in runs.values() for run in rows]
    layers = min((run.layers for run in every if run.layers is not None), default=LEAST_LAYERS)
    if layers < LEAST_LAYERS:
        return f"{layers:.0f} gated layers"
    if all(run.gates_that_differ == 0 for run in runs.get(method, every)):
        return "inert: no gate would differ with W = 0"
    return next(filter(None, map(claim.unanswerable, every)), "")


Values: TypeAlias = dict[str, dict[int, float]]
"""by kind of runs and seed"""


def _at_equal_cost(
    claim: Claim, runs: Mapping[str, Sequence[ClaimRun]]
) -> tuple[Values, tuple[float, float] | None, str]:
    """Return the figures, the costs that they are means over, and why they are not at equal cost."""
    curves = {arm: _curves(claim, rows) for arm, rows in runs.items()}
    if all(len({run.weight for run in rows}) == 1 for rows in runs.values()):
        first, second = (statistics.fmean(claim.cost(run) or 0.0 for run in rows) for rows in runs.values())
        values = {
            arm: {seed: statistics.fmean(c.values()) for seed, c in found.items()} for arm, found in curves.items()
        }
        apart = abs(first - second)
        return values, None, f"costs differ by {100 * apart:.1f} points" if apart > EQUAL else ""
    left, right = curves
    values = {left: {}, right: {}}
    covered = []
    for seed in sorted(curves[left].keys() & curves[right].keys()):
        costs = common_costs(curves[left][seed], curves[right][seed])
        if len(costs) * STEP >= LEAST_RANGE:
            covered.append((costs[0], costs[-1]))
            for arm in values:
                values[arm][seed] = mean_at(curves[arm][seed], costs)
    if not covered:
        return values, None, "no common costs near runs of both"
    return values, (statistics.fmean(low for low, _ in covered), statistics.fmean(high for _, high in covered)), ""


def _curves(claim: Claim, runs: Sequence[ClaimRun]) -> dict[int, dict[float, float]]:
    """Return the figure over the cost for each seed."""
    found: dict[int, dict[float, list[float]]] = {}
    for run in runs:
        if (value := claim.value(run)) is not None and (cost := claim.cost(run)) is not None:
            found.setdefault(run.seed, {}).setdefault(cost, []).append(value)
    return {seed: {cost: statistics.fmean(v) for cost, v in curve.items()} for seed, curve in sorted(found.items())}
