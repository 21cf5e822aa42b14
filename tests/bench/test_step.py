"""What gates add to a training step: operators and memory, counted; time is for the benchmark to say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from step import DENSE, EXTRA, EXTRA_PER_GROUP, VARIANTS, make_steppers

pytestmark = pytest.mark.runs

BATCH = 128
FC = next(variant for variant in VARIANTS if variant.name == "fc, budget")
GROUPS = {"resnet56": 28, "vgg16": 13}


@pytest.mark.parametrize("model", GROUPS)
def test_gates_add_few_operators_and_hardly_any_memory(model: str) -> None:
    steppers = make_steppers(model, 2)
    plan = steppers[FC.name].plan
    counts = {name: stepper.count() for name, stepper in steppers.items()}
    dense = counts.pop(DENSE.name)
    assert len(counts) == len(VARIANTS) - 1
    for name, count in counts.items():
        assert count.groups == GROUPS[model], name
        assert 0 < count.non_view - dense.non_view <= EXTRA_PER_GROUP * count.groups + EXTRA, name
    # What activations keep grows with the batch, what gates keep does not: two small batches tell about a large one.
    some = make_steppers(model, 4, variants=(DENSE, FC), plan=plan)
    larger = {name: stepper.count() for name, stepper in some.items()}
    per_image = (larger[DENSE.name].saved_bytes - dense.saved_bytes) / 2
    at_batch = dense.saved_bytes + (BATCH - 2) * per_image
    assert (
        larger[FC.name].saved_bytes - larger[DENSE.name].saved_bytes == counts[FC.name].saved_bytes - dense.saved_bytes
    )
    assert larger[FC.name].non_view == counts[FC.name].non_view
    for name, count in counts.items():
        assert 0 < count.saved_bytes - dense.saved_bytes <= 0.01 * at_batch, name
