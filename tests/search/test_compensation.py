"""Layers take over what closed channels said: exact where they can, refused with a reason where they must not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.gated import GatedModel
from depl0.search.recovery.compensation import compensate
from tests.networks.coupled import Coupled
from tests.networks.readers import READERS, Plain, gated_of, inputs, state_of


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damping that leaves the fit exact in float64."""
    monkeypatch.setattr("depl0.search.recovery.regression.DAMPING", 1e-12)
    monkeypatch.setattr("depl0.search.recovery.regression.FEW_ROWS", 0.0)


def closing(gated: GatedModel, *gates: int) -> Tensor:
    closed = torch.zeros(gated.plan.num_gates, dtype=torch.bool)
    closed[list(gates)] = True
    return closed


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.usefixtures("exact")
def test_a_combination_of_others_goes_without_a_loss(kind: str) -> None:
    torch.manual_seed(0)
    first, reader, between, shape = READERS[kind]()
    batches = inputs(*shape)
    gated = gated_of(Plain(first, reader, between), batches)
    test = inputs(*shape, count=3)[2]
    wanted = gated.host(test)
    old = state_of(gated.host)
    report = compensate(gated, ~closing(gated, 2), batches)

    gated.fix_gates((~closing(gated, 2)).float())
    torch.testing.assert_close(gated(test), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gated.extract()(test), gated(test))
    assert [entry.layer for entry in report] == ["reader"]
    assert report[0].before > 0.01 and report[0].after < 1e-6
    changed = {name for name, tensor in gated.host.state_dict().items() if not torch.equal(tensor, old[name])}
    assert "reader.weight" in changed and changed <= {"reader.weight", "reader.bias"}


@pytest.mark.usefixtures("exact")
def test_a_constant_goes_into_the_bias_or_into_the_norm_behind() -> None:
    class Normed(nn.Module):
        def __init__(self, norm_behind: bool) -> None:
            super().__init__()
            self.first, self.bn = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
            self.reader = nn.Conv2d(4, 3, 3, bias=not norm_behind)
            self.behind = nn.BatchNorm2d(3) if norm_behind else nn.Identity()
            with torch.no_grad():
                self.bn.weight[1], self.bn.bias[1] = 0.0, 0.7

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.behind(self.reader(torch.relu(self.bn(self.first(x)))))
            return y

    for norm_behind, name in ((False, "reader.bias"), (True, "behind.running_mean")):
        torch.manual_seed(0)
        batches = inputs(2, 8, 8)
        gated = gated_of(Normed(norm_behind), batches)
        wanted, old = gated.host(batches[0]), state_of(gated.host)
        compensate(gated, ~closing(gated, 1), batches)
        gated.fix_gates((~closing(gated, 1)).float())
        torch.testing.assert_close(gated(batches[0]), wanted, rtol=1e-6, atol=1e-6)
        assert not torch.equal(gated.host.state_dict()[name], old[name])


def twin_stream() -> Coupled:
    """A network whose stream has a channel (3) that is twice another one (1), wherever it is written."""
    torch.manual_seed(0)
    host = Coupled()
    with torch.no_grad():
        for conv, norm in ((host.stem, host.bn_stem), (host.back, host.bn_back)):
            conv.weight[3] = conv.weight[1]
            norm.bias.uniform_(-0.5, 0.5)
            norm.weight[3], norm.bias[3] = 2 * norm.weight[1], 2 * norm.bias[1]
    return host


@pytest.mark.usefixtures("exact")
def test_a_residual_group_with_two_readers() -> None:
    batches = inputs(2, 6, 6)
    gated = gated_of(twin_stream(), batches)
    wanted = gated.host(batches[1])
    report = compensate(gated, ~closing(gated, 3), batches)
    gated.fix_gates((~closing(gated, 3)).float())
    torch.testing.assert_close(gated(batches[1]), wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gated.extract()(batches[1]), gated(batches[1]))
    assert {"inner", "wide"} <= {entry.layer for entry in report}


def test_a_depthwise_layer_follows_its_changed_inputs() -> None:
    torch.manual_seed(0)
    host, batches = Coupled(), inputs(2, 6, 6, count=8)
    gated = gated_of(host, batches)
    report = compensate(gated, ~closing(gated, 0, 1), batches)
    depthwise = next(entry for entry in report if entry.layer == "depthwise")
    assert 0 < depthwise.after < 0.98 * depthwise.before


@pytest.mark.usefixtures("exact")
def test_it_makes_up_for_errors_of_the_shortcut() -> None:
    """A block of which nothing is closed still corrects what reaches it wrong, as far as it can."""

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.skip, self.branch = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(6, 5)
            self.last = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.skip(self.first(x)) + self.branch(x))
            return y

    torch.manual_seed(0)
    batches = inputs(6, count=4)
    gated = gated_of(Added(), batches)
    wanted = gated.host(batches[0])
    closed = closing(gated, *range(6))  # two of eight channels stay: the branch alone knows the rest
    report = compensate(gated, ~closed, batches)
    gated.fix_gates((~closed).float())
    assert next(entry for entry in report if entry.layer == "skip").after > 0.01
    torch.testing.assert_close(gated(batches[0]), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("exact")
def test_wide_layers_are_fitted_by_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depl0.search.recovery.regression.WIDE", 1)
    torch.manual_seed(0)
    first, reader, between, shape = READERS["strided"]()
    batches = inputs(*shape)
    gated = gated_of(Plain(first, reader, between), batches)
    wanted = gated.host(batches[0])
    report = compensate(gated, ~closing(gated, 2), batches)
    gated.fix_gates((~closing(gated, 2)).float())
    torch.testing.assert_close(gated(batches[0]), wanted, rtol=1e-6, atol=1e-6)
    assert report[0].after < 1e-6


@pytest.mark.usefixtures("exact")
def test_gates_on_a_readers_own_weights_and_gates_between_0_and_1() -> None:
    """Behind a sigmoid a channel cannot be silenced before the reader, so the gate is on the reader's weight."""
    torch.manual_seed(0)
    first, reader = nn.Linear(6, 4), nn.Linear(4, 3)
    with torch.no_grad():
        first.weight[2], first.bias[2] = first.weight[0], first.bias[0]
    batches = inputs(6)
    model = nn.Sequential(first, nn.Sigmoid(), reader)
    gated = gated_of(model, batches)
    assert ("2.weight", 1) in gated.plan.sites
    gates = torch.tensor([0.5, 1.0, 0.25, 1.0])
    wanted = gated.call_with_gates(gates, batches[0])
    compensate(gated, gates * ~closing(gated, 2), batches, before=gates)
    torch.testing.assert_close(
        gated.call_with_gates(gates.masked_fill(closing(gated, 2), 0), batches[0]), wanted, rtol=1e-5, atol=1e-5
    )


@pytest.mark.usefixtures("exact")
def test_a_channel_that_is_opened_at_the_cut_says_nothing_new() -> None:
    """A group of which every gate had closed keeps one channel when gates are frozen: its reader never knew it."""
    torch.manual_seed(0)
    batches = inputs(2, 9, 8)
    gated = gated_of(Plain(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3, bias=False)), batches)
    before = torch.zeros(4)
    after = torch.tensor([0.0, 1.0, 0.0, 0.0])
    gated.fix_gates(before)
    wanted = gated(batches[0])
    compensate(gated, after, batches, before=before)
    gated.fix_gates(after)
    torch.testing.assert_close(gated(batches[0]), wanted)


def test_inputs_that_do_not_fit_change_nothing() -> None:
    batches = inputs(2, 6, 6)
    gated = gated_of(Coupled(), batches)
    old = state_of(gated.host)
    with pytest.raises(RuntimeError):
        compensate(gated, ~closing(gated, 1), [batches[0], batches[0][:, :1]])
    assert all(torch.equal(t, old[n]) for n, t in gated.host.state_dict().items())


def test_a_second_fit_towards_the_original_network_is_that_of_both_cuts_at_once() -> None:
    """Constants of the first fit are in biases and running means, and must not count twice."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 3, 1),
    ).eval()  # fmt: skip
    network[3].running_mean.uniform_(-1, 1)
    batches, test = [torch.rand(32, 2, 8, 8) for _ in range(2)], torch.rand(16, 2, 8, 8)
    first, both = torch.arange(24) % 4 == 0, torch.arange(24) % 2 == 0
    outputs = {}
    for rounds in ([both], [first, both]):
        gated = depl0.attach(copy.deepcopy(network), batches[0][:1], generator="independent")
        for closed in rounds:
            compensate(gated, ~closed, batches, original=network)
            gated.remove(closed)
        with torch.no_grad():
            outputs[len(rounds)] = gated.extract()(test)
    torch.testing.assert_close(outputs[2], outputs[1])
