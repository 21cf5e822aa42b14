"""Bounded memory: examples in pieces, matrices of a part of the groups, and a clear error before the work starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs
from depl0.search import reconstruction
from depl0.search.reconstruction import Look, reconstruction_errors
from depl0.search.recovery import compensation, memory
from depl0.search.recovery.compensation import compensate


class Pyramid(nn.Module):
    """Large maps first, small ones behind, with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.outer = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 8, 1), nn.Conv2d(8, 12, 1)
        self.down, self.head = nn.Conv2d(12, 16, 4, stride=4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.outer(self.inner(x).relu())
        return self.head(self.down(x).relu().flatten(2).mean(2))


def images(count: int) -> Tensor:
    return torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def gated_network() -> depl0.GatedModel:
    torch.manual_seed(0)
    return depl0.attach(Pyramid().eval(), images(1), generator="independent")


def test_layers_that_are_fitted_in_bounded_memory_fit_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few examples wait at the large maps, more join behind them, and some are dropped where maps grow again."""
    closed = torch.arange(gated_network().plan.num_gates) % 3 == 0
    errors, started = {}, []
    start = compensation.Stepper
    monkeypatch.setattr(compensation, "Stepper", lambda *args, **named: started.append(args) or start(*args, **named))
    for limit in (memory.ACTIVATIONS, 2_500_000):
        monkeypatch.setattr(compensation, "activations_for", lambda _, limit=limit: limit)
        gated, wanted = gated_network(), Pyramid()
        wanted.load_state_dict(gated.host.state_dict())
        compensate(gated, ~closed, [images(256)])
        gated.fix_gates((~closed).float())
        test = torch.randn(64, 1, 16, 16, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            errors[limit] = float((gated.extract()(test) - wanted(test)).square().mean() / wanted(test).var())
    assert len(started) > 20, "the second time there were many pieces"
    assert errors[2_500_000] < 1.2 * errors[memory.ACTIVATIONS]


def test_the_blocks_of_a_transformer_do_not_drop_and_repeat_their_inputs() -> None:
    """They need more memory in their MLPs than between them."""
    waiting = memory.Profile((), alive=(8, 12, 8, 13) * 10, peak=0).held(
        [ExampleInputs.of(torch.zeros(1, 4))] * 64, 1000
    )
    assert set(waiting) == {1000 // (2 * 13)}


def test_scores_do_not_depend_on_how_many_matrices_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    gated, data = gated_network(), [images(32)]
    whole = reconstruction_errors(gated, data)[0]
    assert len(Look(gated, [ExampleInputs.of(data[0])]).parts(1)) == len(gated.plan.groups) > 1
    monkeypatch.setattr(reconstruction.Look.parts, "__defaults__", (1,))
    torch.testing.assert_close(reconstruction_errors(gated, data)[0], whole, rtol=0, atol=0)


def test_a_step_of_recovery_saves_a_bounded_number_of_bytes() -> None:
    saved = memory.saved_bytes(Pyramid(), ExampleInputs.of(images(2)))
    assert saved >= 4 * 16 * 16 * (12 + 8 + 12)
    assert memory.training_batch(Pyramid(), ExampleInputs.of(images(2)), 10 * saved) == 10
    assert memory.training_batch(Pyramid(), ExampleInputs.of(images(2)), 1) == 1


def test_too_little_memory_is_an_error_before_the_work_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = memory.needed_memory(gated_network(), [images(16)], trained=False)
    assert 100_000 < needed < 5_000_000 < memory.needed_memory(gated_network(), [images(1024)], trained=True)
    assert (memory.available_memory(torch.device("cpu")) or 0) > 1_000_000
    monkeypatch.setattr(memory, "available_memory", lambda _: 100_000)
    monkeypatch.setattr("depl0.search.rounds.reconstruction_scores", None)
    data: Any = [images(16)]
    with pytest.raises(InputError, match=r"needs about 0\.0\d* GB of memory on cpu, but only 0\.0 GB are available"):
        depl0.prune(Pyramid(), images(1), data=data)
