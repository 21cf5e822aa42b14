"""Scores from the error after compensation, against least squares done by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.search.importance import standardise
from depl0.search.reconstruction import (
    reconstruction_errors,
    reconstruction_scores,
)
from tests.networks.coupled import Coupled
from tests.networks.readers import READERS, Plain, gated_of, inputs, state_of


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damping that leaves the fit exact in float64."""
    monkeypatch.setattr("depl0.search.recovery.regression.DAMPING", 1e-10)
    monkeypatch.setattr("depl0.search.recovery.regression.FEW_ROWS", 0.0)


def refit_error(columns: Tensor, wanted: Tensor) -> float:
    """Return the mean squared error of the best affine map from columns to what is wanted."""
    centred = columns - columns.mean(0)
    target = wanted - wanted.mean(0)
    solution = torch.linalg.lstsq(centred, target, driver="gelsd").solution
    return float((target - centred @ solution).square().sum() / len(target))


@pytest.mark.usefixtures("exact")
def test_errors_are_those_of_least_squares_removal_after_removal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    batches = inputs(6, count=8)
    gated = gated_of(model, batches)
    found = reconstruction_errors(gated, batches)[0]

    hidden = torch.tanh(model[0](torch.cat(batches))).detach()
    wanted = model[2](hidden).detach()
    energy = float((wanted - wanted.mean(0)).square().sum() / len(wanted))
    left, order, total, increments = list(range(5)), [], 0.0, []
    while left:
        errors = {
            c: refit_error(hidden[:, [k for k in left if k != c]], wanted) if len(left) > 1 else energy for c in left
        }
        least = min(errors, key=errors.__getitem__)
        increments.append((errors[least] - total) / energy)
        total = errors[least]
        order.append(least)
        left.remove(least)
    rising = torch.tensor(increments, dtype=torch.float64).cummax(0).values
    torch.testing.assert_close(found[order], rising, rtol=1e-4, atol=1e-9)
    assert found.argsort().tolist() == order


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.usefixtures("exact")
def test_what_others_can_say_goes_first_and_only_once(kind: str) -> None:
    torch.manual_seed(0)
    first, reader, between, shape = READERS[kind]()
    batches = inputs(*shape)
    gated = gated_of(Plain(first, reader, between), batches)
    errors = reconstruction_errors(gated, batches)[0]
    assert int((errors < 1e-6).sum()) == 1, "channels 0, 1 and 2 depend on each other: one can go, the others cannot"
    assert int(errors.argmin()) in (0, 1, 2)


def test_scores_set_errors_against_cost_and_are_standardised(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    batches = inputs(2, 6, 6)
    gated = gated_of(Coupled(), batches)
    old = state_of(gated.host)
    errors = reconstruction_errors(gated, batches)[0]
    _, price = gated.expected.value_and_gradient(torch.ones(gated.plan.num_gates), "macs")
    for exponent in (1.0, 0.5):
        monkeypatch.setattr("depl0.search.reconstruction.EXPONENT", exponent)
        scores = reconstruction_scores(gated, batches, "macs")
        wanted = standardise(exponent * errors.log() - price.double().log())
        torch.testing.assert_close(scores.double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(scores, reconstruction_scores(gated, batches, "macs"))
    assert not torch.equal(scores, reconstruction_scores(gated, batches, "params"))
    assert all(torch.equal(tensor, old[name]) for name, tensor in gated.host.state_dict().items())


def test_readers_of_a_residual_group_are_added_up() -> None:
    """The stream is read by two layers; a channel that only one of them needs is still needed."""
    torch.manual_seed(0)
    host = Coupled()
    with torch.no_grad():
        for bias in (host.bn_stem.bias, host.bn_back.bias):
            bias.uniform_(-0.5, 0.5)
        host.inner.weight[:, 2], host.wide.weight[:, 2] = 0, 3.0
        host.inner.weight[:, 4], host.wide.weight[:, 4] = 0, 0
    batches = inputs(2, 6, 6)
    gated = gated_of(host, batches)
    errors = reconstruction_errors(gated, batches)[0]
    assert int(errors[:5].argmin()) == 4 and float(errors[2]) > 100 * float(errors[4])


def test_wide_groups_lose_several_channels_at_once_and_wide_layers_are_judged_by_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("depl0.search.recovery.regression.DAMPING", 1e-6)
    monkeypatch.setattr("depl0.search.recovery.regression.FEW_ROWS", 0.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 160, 3), nn.ReLU(), nn.Conv2d(160, 2, 3))
    batches = [batch[:, :1].float() for batch in inputs(1, 7, 7)]
    gated = depl0.attach(model.eval(), batches[0][:1], generator="independent")
    with torch.no_grad():
        model[0].weight[80:] = model[0].weight[:80]
        model[0].bias[80:] = model[0].bias[:80]
    errors = reconstruction_errors(gated, batches)[0]
    assert bool(errors.isfinite().all()) and len(errors.unique()) > 80
    twins = errors.view(2, 80)
    assert float(twins.min(0).values.median()) < 0.1 * float(twins.max(0).values.median())
