"""A generator that trains: channels that were made useless are found, which the published form fails to do."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.support.sampling import covering
from torch import Tensor, nn

from depl0.analysis.plan import Plan
from depl0.analysis.planning import plan
from depl0.gated import GatedModel
from depl0.gates.generators import make_generator
from depl0.host.inputs import ExampleInputs

WIDTH, USELESS = 20, 6
STEPS = 150
PLANTED_EXAMPLE = ExampleInputs.of(torch.zeros(1, 2, 6, 6))


class Layer(nn.Module):
    """A layer some of whose channels give nothing, whatever their weights are."""

    def __init__(self, inputs: int, useful: Tensor) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, len(useful), 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(len(useful))
        self.useful: Tensor
        self.register_buffer("useful", useful.view(-1, 1, 1))
        nn.init.kaiming_normal_(self.conv.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))) * self.useful


class Planted(nn.Module):
    """Three such layers and a head whose outputs vary by about one."""

    def __init__(self, useful: list[Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.third = Layer(2, useful[0]), Layer(WIDTH, useful[1]), Layer(WIDTH, useful[2])
        self.head = nn.Linear(WIDTH, 24)
        self.eval()  # batch statistics are not what this is about
        with torch.no_grad():
            self.head.weight.div_(self(torch.randn(256, 2, 6, 6)).std(0).mean())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.third(self.second(self.first(x))).mean((2, 3)))


@pytest.fixture(scope="module")
def planted_plan() -> Plan:
    """Which channels are useful is a matter of values: one plan serves all."""
    return plan(Planted([torch.ones(WIDTH)] * 3), PLANTED_EXAMPLE)


def search_planted(
    its_plan: Plan, seed: int, generator: str, preset: str = "default", **options: str
) -> tuple[float, float]:
    """Search while the network has to go on as it is; return precision and recall of the closed gates."""
    torch.manual_seed(seed)
    useful = [torch.ones(WIDTH) for _ in range(3)]
    for layer in useful:
        layer[torch.randperm(WIDTH)[:USELESS]] = 0
    network = Planted(useful)
    teacher = copy.deepcopy(network)
    rng = torch.Generator().manual_seed(seed)
    made = make_generator(generator, [WIDTH] * 3, preset=preset, rng=rng, **options)
    gated = GatedModel(network, its_plan, made, PLANTED_EXAMPLE)
    gated.training = True  # gates are sampled; the host stays in evaluation mode
    free = generator == "independent"
    rate = (8.0 if free else 8.0 / (2 * gated.generator.preset.bound)) / STEPS
    optimizers = [
        torch.optim.Adam(gated.gate_parameters(), lr=rate),
        torch.optim.SGD(gated.weight_parameters(), lr=1e-3, momentum=0.9),
    ]
    for _ in range(STEPS):
        images = torch.randn(32, 2, 6, 6)
        with torch.no_grad():
            wanted = teacher(images)
        loss = (gated(images) - wanted).square().mean() + 0.5 * gated.penalty("params")
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    closed = gated.evaluation_gates() == 0
    planted = torch.cat([layer == 0 for layer in useful])
    hits = float((closed & planted).sum())
    return hits / max(float(closed.sum()), 1.0), hits / float(planted.sum())


TRAINED = [{"generator": "fc", "direction": "forward"}, {"generator": "fc", "direction": "backward"}]


@pytest.mark.parametrize(("options", "seed"), covering([*TRAINED, {"generator": "independent"}], range(5)))
def test_the_closed_gates_are_the_planted_ones(planted_plan: Plan, options: dict[str, str], seed: int) -> None:
    precision, recall = search_planted(planted_plan, seed, **options)
    assert precision >= 0.9
    assert recall >= 0.9


def test_the_published_form_does_not_find_them(planted_plan: Plan) -> None:
    precision, recall = search_planted(planted_plan, 0, "fc", preset="paper")
    assert min(precision, recall) < 0.8
