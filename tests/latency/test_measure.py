"""How networks are timed: in turn, in changing order, by the right clock."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from depl0.latency import interleave, speedup, summarise, time_networks

CPU = torch.device("cpu")


def test_every_round_has_all_calls_in_an_order_of_its_own() -> None:
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abcd"}  # type: ignore[misc]
    times = interleave(calls, CPU, repeats=20, seconds=60.0)
    assert {len(values) for values in times.values()} == {20}
    rounds = [tuple(seen[start : start + 4]) for start in range(0, len(seen), 4)]
    assert len(rounds) == 1 + 20  # the warm-up is not counted
    assert all(sorted(names) == list("abcd") for names in rounds)
    followers = {names[names.index("a") + 1] for names in rounds if names.index("a") < 3}
    assert followers == {"b", "c", "d"}  # nothing always comes after the same


def test_the_modes_of_networks_are_kept_and_more_work_takes_longer() -> None:
    small, large = nn.Linear(8, 8).train(), nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).eval()
    with pytest.raises(RuntimeError):
        time_networks({"small": small, "large": large}, [torch.zeros(1, 8)], 15, 1.0)
    assert small.training and not large.training
    one = summarise(time_networks({"large": large}, [torch.zeros(64, 512)], 15, 1.0)["large"])
    other = summarise(time_networks({"small": small}, [torch.zeros(64, 8)], 15, 1.0)["small"])
    assert 0 < one.best <= one.median and one.spread >= 0
    assert other.best < one.best


def test_a_speedup_says_how_certain_it_is() -> None:
    rng = random.Random(0)
    base = [1 + 0.1 * rng.random() for _ in range(31)]
    same, half = [1 + 0.1 * rng.random() for _ in range(31)], [0.5 + 0.05 * rng.random() for _ in range(31)]
    assert not speedup(base, same).is_measurable
    found = speedup(base, half)
    assert found.is_measurable and found.low < 2 < found.high and found.high - found.low < 0.2
    assert speedup(half, base).is_measurable and speedup(half, base).high < 1
    # A moody machine: 1.36 times as fast by the medians, but not in the same rounds.
    assert not speedup([1.36, 1.36, 1.36, 1.0, 1.0], [1.0, 1.0, 1.36, 1.36, 1.36]).is_measurable


TIMES = st.floats(1e-6, 1e3)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=40))
@example([(3.89, 3.0), (3.89, 3.28), (3.9, 3.28), (3.88, 3.4), (3.89, 2.9)])
@example([(1e-6, 1e3), (1e3, 1e-6)])
def test_a_speedup_is_the_ratio_of_the_printed_times_and_lies_in_its_interval(
    rounds: list[tuple[float, float]],
) -> None:
    before, after = map(list, zip(*rounds, strict=True))
    found = speedup(before, after)
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(summarise(before).median / summarise(after).median)
