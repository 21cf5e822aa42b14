"""The dependency between gates that a search starts from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.errors import InputError
from depl0.gates.generators.fc import FC
from depl0.search.dependency import start_dependent


class Twins(nn.Module):
    """Two groups of four: in the first, channels 0 and 1 are the same; each channel of the second reads all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.second.weight.abs_()
            self.second.weight[0] = torch.tensor([3.0, 0.0, 0.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def gated(**options: Any) -> depl0.GatedModel:
    torch.manual_seed(0)
    return depl0.attach(
        Twins(), torch.randn(1, 3), budget=0.5, conditioning="gates", rng=torch.Generator().manual_seed(0), **options
    )


BATCHES = [(torch.randn(64, 3, generator=torch.Generator().manual_seed(n)), None) for n in range(4)]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_neighbours_move_scores_by_the_share_that_was_asked_for(direction: Any) -> None:
    network = gated(direction=direction)
    generator = network.generator
    assert isinstance(generator, FC)
    start_dependent(network, BATCHES, None, 0.3)
    first, second = generator.order()
    assert not generator.layers[first].weight.any()
    weight = generator.layers[second].weight / generator.inputs(second) * generator.preset.bound
    torch.testing.assert_close(weight.square().sum(1).mean().sqrt(), torch.tensor(0.3))
    torch.testing.assert_close(weight.sum(1), torch.zeros(4), atol=1e-5, rtol=0)


def test_closing_a_channel_moves_the_gates_that_depend_on_it_and_open_gates_keep_their_scores() -> None:
    network = gated()
    start_dependent(network, BATCHES, None, 0.5)
    scores = torch.linspace(-1, 1, 8)
    network.engine.start_from(scores)
    generator = network.generator
    with torch.no_grad():
        torch.testing.assert_close(generator.on_gates(lambda _, s: torch.ones_like(s)), scores, atol=1e-4, rtol=0)
        closed = generator.on_gates(lambda group, s: torch.tensor([0.0, 1, 1, 1]) if group == 0 else torch.ones_like(s))
    moved = (closed - scores)[4:]
    assert moved.abs().max() > 0.1
    torch.testing.assert_close((closed - scores)[:4], torch.zeros(4), atol=1e-4, rtol=0)


def test_a_search_learns_from_there_and_resumes() -> None:
    network = gated()
    adam = torch.optim.Adam(network.gate_parameters(), lr=0.01)
    search = depl0.Search(network, steps=5, calibrate=[b for b, _ in BATCHES], dependency=0.5, cut="never")
    for inputs, _ in BATCHES:
        search.step()
        network(inputs).square().mean().backward()
        adam.step()
        adam.zero_grad()
    again = gated()
    again.load_state_dict(network.state_dict())
    resumed = depl0.Search(
        again, 5, calibrate=[b for b, _ in BATCHES], dependency=0.5, cut="never", state=search.state_dict()
    )
    torch.manual_seed(1)
    resumed.step()
    search.step()
    torch.testing.assert_close(again.log_alpha(), network.log_alpha())
    for done in (search, resumed):
        assert depl0.cost(done.finish(), torch.randn(1, 3)).macs <= 0.5 * network.dense_cost.macs


def test_what_has_no_weights_between_gates_is_refused() -> None:
    torch.manual_seed(0)
    for options in ({"generator": "independent", "conditioning": "gates"}, {"conditioning": "log_alpha"}):
        network = depl0.attach(Twins(), torch.randn(1, 3), budget=0.5, **options)
        with pytest.raises(InputError, match="dependency needs generator 'fc' with conditioning 'gates'"):
            depl0.Search(network, steps=6, dependency=0.1)
