"""Channels last: chosen once, kept for the whole run, and not to be seen in what is saved."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from depl0.app.runtime import network as memory_format
from depl0.app.runtime.accelerator import make_accelerator
from depl0.app.training import preflight
from depl0.errors import InputError, TrainingError
from tests.networks.tiny import SIDE, Noisy, TinyNet, interrupt, run, tiny_recipe
from tests.support.resume import what_matters

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]

SHAPE = (4, 1, SIDE, SIDE)


class ViewNet(TinyNet):
    """Reads its feature maps in the order of channels first."""

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.linear(x.view(len(x), 8, -1).view(len(x), -1).view(len(x), 8, -1).mean(2))


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def test_weights_change_their_layout_and_nothing_else() -> None:
    torch.manual_seed(0)
    network = TinyNet().double()
    images = torch.randn(SHAPE, dtype=torch.float64)
    before, parameters = network(images), list(network.parameters())
    torch.manual_seed(1)
    expected = network(images)
    memory_format.set_channels_last(network)
    assert is_channels_last(network.conv2.weight)
    assert all(a is b for a, b in zip(network.parameters(), parameters, strict=True))
    torch.manual_seed(1)
    torch.testing.assert_close(network(images), expected, rtol=1e-12, atol=1e-12)
    memory_format.set_contiguous(network)
    assert network.conv2.weight.is_contiguous()
    assert before.shape == expected.shape


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_optimizer_that_was_loaded_goes_on_as_before(kind: str) -> None:
    """Fused steps walk through memory: with the state in another order than its parameter, they are wrong."""

    def make() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        network = memory_format.set_channels_last(TinyNet())
        if kind == "sgd":
            return network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
        return network, torch.optim.Adam(network.parameters(), lr=0.1, fused=True)

    def step(network: nn.Module, optimizer: Any, seed: int) -> None:
        torch.manual_seed(seed)
        network(torch.randn(SHAPE)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    first, first_optimizer = make()
    step(first, first_optimizer, 1)
    second, second_optimizer = make()
    second.load_state_dict({name: value.clone().contiguous() for name, value in first.state_dict().items()})
    saved = copy.deepcopy(first_optimizer.state_dict())
    for state in saved["state"].values():
        for name, value in state.items():
            state[name] = value.contiguous()
    second_optimizer.load_state_dict(saved)
    memory_format.match_state_layout(second_optimizer)
    step(first, first_optimizer, 2)
    step(second, second_optimizer, 2)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gated", [False, True])
def test_an_interrupted_run_goes_on_channels_last_to_the_bit(tmp_path: Path, gated: bool) -> None:
    recipe = tiny_recipe(run__channels_last="on", finetune__gated=gated)
    summary = run(recipe, tmp_path / "whole")
    assert summary["channels_last"] is True
    for step in (5, 11):
        with pytest.raises(TrainingError, match="interrupted"):
            run(recipe, tmp_path / "run", Noisy(step if step == 5 else 6, interrupt), resume=step > 5)
    run(recipe, tmp_path / "run", resume=True)
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "whole")
    values = load_file(tmp_path / "whole" / "compact" / "compact.safetensors")
    assert all(value.is_contiguous() for value in values.values())


def test_a_short_run_is_not_measured_and_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> bool:
        raise AssertionError("measured")

    monkeypatch.setattr(preflight, "is_faster_channels_last", never)
    summary = run(tiny_recipe(), tmp_path / "auto")
    assert summary["channels_last"] is False
    run(tiny_recipe(run__channels_last="off"), tmp_path / "off")
    assert what_matters(tmp_path / "auto") == what_matters(tmp_path / "off")


def test_a_long_run_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MIN_STEPS", 0)
    monkeypatch.setattr(preflight, "MIN_MACS", 0)
    asked = []
    measure = memory_format.is_faster_channels_last
    monkeypatch.setattr(preflight, "is_faster_channels_last", lambda *args: asked.append(measure(*args)) or True)
    recipe, reporter = tiny_recipe(), Noisy(5, interrupt)
    with pytest.raises(TrainingError, match="interrupted"):
        run(recipe, tmp_path / "run", reporter)
    assert "channels last is faster here" in reporter.notes
    summary = run(recipe, tmp_path / "run", resume=True)
    assert summary["channels_last"] is True
    assert len(asked) == 1
    # The measurement itself leaves no trace: the run is the one that was told to be channels last.
    run(tiny_recipe(run__channels_last="on"), tmp_path / "on")
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "on")


def test_measuring_changes_nothing() -> None:
    accelerator = make_accelerator(tiny_recipe())
    host = TinyNet()
    before = copy.deepcopy(host.state_dict())
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert memory_format.is_faster_channels_last(accelerator, host, SHAPE) in (True, False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    after = host.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert host.conv2.weight.is_contiguous()
    assert all(parameter.grad is None for parameter in host.parameters())


def test_a_network_that_reads_memory_in_its_own_order(tmp_path: Path) -> None:
    accelerator = make_accelerator(tiny_recipe())
    assert memory_format.is_faster_channels_last(accelerator, ViewNet(), SHAPE) is False
    spec = f"{__name__}:ViewNet"
    with pytest.raises(InputError, match="channels_last is on, but the network does not run so") as caught:
        run(tiny_recipe(model__spec=spec, run__channels_last="on"), tmp_path / "run")
    assert "'off'" in str(caught.value)


def test_the_decision_is_in_every_checkpoint(tmp_path: Path) -> None:
    recipe = tiny_recipe(run__channels_last="on")
    with pytest.raises(TrainingError):
        run(recipe, tmp_path / "run", Noisy(2, interrupt))
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert json.dumps("channels_last") in (checkpoint / "state.json").read_text()
