"""The gated model as a user meets it."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.networks.structures import NormAfterConv, Residual, TiedWeights, image
from tests.support.compare import call, distance, liven, random_gates, same_cost
from torch import nn

import depl0


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Build the same networks whatever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture
def gated() -> depl0.GatedModel:
    return depl0.attach(liven(Residual(), image()), image(), generator="independent", start=0.5)


def test_training_samples_and_evaluation_does_not(gated: depl0.GatedModel) -> None:
    gated.train()
    for norm in gated.host.norms:
        norm.eval()  # so that only the gates vary
    assert distance(call(gated, image()), call(gated, image())) > 1e-3
    gated.eval()
    assert distance(call(gated, image()), call(gated, image())) == 0
    assert distance(call(gated, image()), call(gated.host, image())) > 1e-3


def test_one_seed_gives_one_sample(gated: depl0.GatedModel) -> None:
    gated.train()
    outputs = []
    for _ in range(2):
        torch.manual_seed(7)
        outputs.append(call(copy.deepcopy(gated), image()))
    assert distance(*outputs) == 0


def test_fixed_gates_are_used_in_both_modes(gated: depl0.GatedModel) -> None:
    gates = random_gates(gated.plan.num_gates)
    gated.fix_gates(gates)
    gated.train()
    assert torch.equal(gated.evaluation_gates(), gates)
    assert torch.equal(gated.open_probability(), (gates > 0).float())
    a, b = call(copy.deepcopy(gated), image()), call(copy.deepcopy(gated), image())
    assert distance(a, b) == 0
    gated.eval()
    fixed = call(gated, image())
    gates.zero_()  # the model keeps its own
    assert distance(fixed, call(gated, image())) == 0
    gated.free_gates()
    assert distance(fixed, call(gated, image())) > 1e-3
    assert torch.equal(gated.evaluation_gates(), depl0.gates.hard_concrete.evaluation_gates(gated.log_alpha().detach()))


def test_kept_cost_is_the_cost_of_the_compact_network(gated: depl0.GatedModel) -> None:
    gated.generator.start_from(torch.linspace(-4, 4, gated.plan.num_gates))
    compact = gated.extract()
    assert same_cost(gated.kept_cost(), depl0.cost(compact, image()))
    assert gated.kept_cost().params < gated.dense_cost.params


def test_evaluation_rules() -> None:
    """Between the two thresholds the median rule closes, and the paper's keeps."""
    for rule, closed in (("median", True), ("paper", False)):
        gated = depl0.attach(NormAfterConv(), image(), generator="independent", evaluation=rule)
        gated.generator.start_from(torch.full((gated.plan.num_gates,), -2.0))
        assert bool((gated.evaluation_gates() == 0).all()) is closed
    with pytest.raises(depl0.errors.InputError, match="'mean'"):
        depl0.attach(NormAfterConv(), image(), evaluation="mean")


def test_state_dict_round_trip(gated: depl0.GatedModel) -> None:
    torch.manual_seed(5)
    other = depl0.attach(liven(Residual(), image(), seed=9), image(), generator="independent").eval()
    gated.eval()
    assert distance(call(gated, image()), call(other, image())) > 1e-3
    state = gated.state_dict()
    assert all(key.startswith(("host.", "generator.")) for key in state)
    other.load_state_dict(state)
    assert distance(call(gated, image()), call(other, image())) == 0


def test_fixed_gates_survive_a_conversion(gated: depl0.GatedModel) -> None:
    gates = random_gates(gated.plan.num_gates)
    gated.fix_gates(gates)
    gated.bfloat16()
    assert torch.equal(gated.evaluation_gates(), gates)
    assert gated.eval()(image().bfloat16()).dtype == torch.bfloat16
    gated.double()
    assert gated.eval()(image().double()).dtype == torch.float64
    assert {p.dtype for p in gated.extract().parameters()} == {torch.float64}


def test_autocast(gated: depl0.GatedModel) -> None:
    gated.train()
    with torch.autocast("cpu", torch.bfloat16):
        output = gated(image())
        assert output.dtype == torch.bfloat16
        assert gated.log_alpha().dtype == torch.float32
        loss = output.float().square().sum() + gated.penalty("params")
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in gated.parameters())


def test_compiles_into_one_graph(gated: depl0.GatedModel) -> None:
    gated.eval()
    torch._dynamo.reset()
    compiled = torch.compile(gated, backend="eager", fullgraph=True)
    assert distance(call(gated, image()), call(compiled, image())) < 1e-6
    explanation = torch._dynamo.explain(gated.train())(image())
    assert explanation.graph_count == 1 and explanation.graph_break_count == 0


def test_two_inputs_tied_weights_and_hooks() -> None:
    host = TiedWeights()
    calls = []
    host.one.register_forward_hook(lambda *_: calls.append("one"))
    gated = depl0.attach(host, (image(), image())).eval()
    calls.clear()
    left, right = gated(image(), b=image())
    assert calls == ["one"] and left.shape == right.shape == (2, 4)


def test_extracting_again_composes(tmp_path: object) -> None:
    torch.manual_seed(0)
    host = liven(Residual(), image())
    for seed in range(3):
        gated = depl0.attach(host, image()).eval()
        gated.fix_gates(torch.where(random_gates(gated.plan.num_gates, seed) > 0.4, 0.9, 0.0))
        host = gated.extract().eval()
    loaded = depl0.load(depl0.save(host, str(tmp_path)), Residual).eval()
    assert distance(call(host, image()), call(loaded, image())) == 0
    assert type(host) is Residual and host.stem.out_channels < 8


class TwoInputs(nn.Module):
    features = 5

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

    def forward(self, pixels: torch.Tensor, scale: float = 1.0, *, labels: torch.Tensor | None = None) -> torch.Tensor:
        return scale * self.head(self.conv(pixels).relu().mean((2, 3)))

    def describe(self) -> str:
        return f"{self.features} features"


def test_attributes_of_the_host_are_reachable() -> None:
    gated = depl0.attach(TwoInputs(), torch.randn(2, 1, 6, 6))
    assert (gated.features, gated.describe()) == (5, "5 features")
    assert gated.head is gated.host.head
    with pytest.raises(AttributeError, match="'GatedModel' object has no attribute 'featurs'"):
        _ = gated.featurs
    assert not hasattr(gated, "_private")
