"""Whatever the analysis can prune can be scored and compensated, or is left alone; the certificate holds afterwards."""

from __future__ import annotations

import random

import pytest
import torch

import depl0
from depl0.host.inputs import ExampleInputs
from depl0.search.reconstruction import reconstruction_scores
from depl0.search.recovery.compensation import compensate
from tests.networks import heads, structures
from tests.networks.structures import STRUCTURES
from tests.support.sampling import ALL

pytestmark = pytest.mark.structures

FIXED_BATCH = {"Attention"}  # its code has the number of examples
NOT_REFITTED = {"TiedWeights"}  # every weight that reads closed channels is used elsewhere too
MODULES = (structures.__name__, heads.__name__)  # other tests add further structures when they are imported
NAMES = sorted(
    name
    for name, structure in STRUCTURES.items()
    if structure.groups and structure.build.__module__ in MODULES and name not in FIXED_BATCH
)
OF_HEADS = ["Heads", "PlacesOfHeads", "WideGroups"]
OTHERS = [name for name in NAMES if STRUCTURES[name].build.__module__ != heads.__name__]
CHOSEN = NAMES if ALL else [*random.Random(0).sample(OTHERS, 20), *OF_HEADS]
"""a seeded sample; ``make zoo`` runs them all"""


@pytest.mark.parametrize("name", CHOSEN)
def test_scored_compensated_and_extracted(name: str) -> None:
    torch.manual_seed(0)
    structure = STRUCTURES[name]
    model = structure.build().eval()
    gated = depl0.attach(model, structure.inputs, generator="independent").eval()
    example = ExampleInputs.of(structure.inputs)
    inputs = example.kwargs or example.args
    closed = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    for group in gated.plan.groups:
        closed[group.offset + group.size - 1] = group.size > 1
    scores = reconstruction_scores(gated, [inputs, inputs], "macs")
    assert scores.shape == closed.shape and bool(scores.isfinite().all())
    report = compensate(gated, ~closed, [inputs, inputs])
    assert bool(report) == (name not in NOT_REFITTED)
    assert all(entry.after <= entry.before * 1.01 + 1e-6 for entry in report), str(report)
    gated.fix_gates((~closed).float())
    gated.extract()
