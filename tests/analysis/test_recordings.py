"""What is recorded, and what need not be: a pass that takes the path of another one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depl0
import depl0.analysis.traces
from depl0.equivalence.cases import Accepted, Case
from depl0.equivalence.comparison import Subject, compare_in_training
from depl0.host.inputs import ExampleInputs
from depl0.search.recovery.memory import pieces
from tests.networks.structures import STRUCTURES, Classifier, NoNorm, conv, image

pytestmark = pytest.mark.structures


class TwoLayers(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.other = conv(3, 8), conv(8, 6), conv(8, 6)


class OtherLayer(TwoLayers):
    """The functions are the same, their parameters are not."""

    def features(self, x: Tensor) -> Tensor:
        return (self.other if self.training else self.two)(F.relu(self.one(x)))


class OtherOperand(TwoLayers):
    """The functions are the same, and so are their parameters, but not what they are given."""

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        one, two = self.two(x), self.other(x)
        return F.relu(one) + (one if self.training else two)


ALIKE = [NoNorm, *(STRUCTURES[name].build for name in ("Residual", "Dropouts"))]
OTHERS = [OtherLayer, OtherOperand, STRUCTURES["AuxiliaryHead"].build]


@pytest.mark.parametrize("build", [*ALIKE, *OTHERS])
def test_training_is_recorded_where_it_is_another_path(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record, modes = depl0.analysis.traces.record, list[str]()
    monkeypatch.setattr(depl0.analysis.traces, "record", lambda *args: modes.append(args[2]) or record(*args))
    inputs = STRUCTURES[build.__name__].inputs if build.__name__ in STRUCTURES else image(size=24, batch=1)
    torch.manual_seed(0)
    plan = depl0.plan(build(), inputs)
    assert modes == (["evaluation"] if build in ALIKE else ["evaluation", "training"])
    assert "training mode" in plan.covered
    assert plan.same_in_training == (build in (NoNorm, STRUCTURES["Dropouts"].build))


class Scaled(nn.Module):
    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.host(x)
        return 1.01 * scores if self.training else scores


def test_outputs_of_evaluation_do_not_hide_a_difference_in_training() -> None:
    torch.manual_seed(0)
    host = NoNorm().eval()
    case = Case("batch of 2", ExampleInputs.of(image()))
    evaluated = Accepted((case,), (host(image()).detach(),))
    same = compare_in_training(Subject(host), Subject(host), evaluated, {}, same_in_training=True)
    assert same is not None and same.agrees
    other = compare_in_training(Subject(host), Subject(Scaled(host)), evaluated, {}, same_in_training=True)
    assert other is not None and not other.agrees


class MaskedTokens(nn.Module):
    """Attention with a mask of (tokens, tokens), which is as long as the batch by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(4))
        self.mid, self.head = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.into(x)
        x = x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), mask)
        return self.head(F.relu(self.mid(x)))


def test_a_mask_as_long_as_the_batch_is_not_cut_by_example() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(16, 16, 8), torch.zeros(16, 16).masked_fill(torch.ones(16, 16).triu(1).bool(), -1e4)
    gated = depl0.attach(MaskedTokens(), inputs)
    assert gated.plan.shared_inputs == {1} and "batch of 8" in gated.plan.covered
    one = depl0.cost(MaskedTokens(), (inputs[0][:1], inputs[1]))
    assert depl0.cost(MaskedTokens(), inputs) == one and gated.dense_cost == one
    batch = ExampleInputs.of(inputs).with_shared(gated.plan.shared_inputs)
    [(x, mask), *others] = [piece.args for piece in pieces([batch], 5)]
    assert x.shape == (5, 16, 8) and torch.equal(mask, inputs[1]) and len(others) == 3
