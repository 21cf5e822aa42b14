"""Tables of layers, measured here and kept on disk; latency as a budget and a penalty."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import torch
from torch import nn

import depl0
from depl0.gated import GatedModel
from depl0.gated.attaching import with_config
from depl0.host.inputs import ExampleInputs
from depl0.latency.measure import time_networks
from depl0.latency.tables import fit, record_calls
from tests.networks.structures import STRUCTURES


def small_gated() -> GatedModel:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.ReLU(), nn.Conv2d(32, 48, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4),
    )  # fmt: skip
    return depl0.attach(model.eval(), torch.randn(1, 3, 24, 24), generator="independent")


@pytest.mark.parametrize(
    "name",
    ["Depthwise", "Grouped", "GroupedTransposed", "Transposed", "Conv1d", "Conv3d", "CircularPadding", "CalledTwice"],
)
def test_every_call_of_a_layer_can_be_repeated_smaller(name: str) -> None:
    structure = STRUCTURES[name]
    gated = depl0.attach(structure.build().eval(), structure.inputs, generator="independent")
    calls = record_calls(gated.host, ExampleInputs.of(structure.inputs))
    assert sum(map(len, calls.values())) == len(gated.plan.uses)
    for use in gated.plan.uses:
        call = calls[use.out_axis[0]].pop(0)
        assert call.smaller(use, use.out_size, use.in_size)().numel() == call.output_elements
        unit = use.out_size // call.groups if use.in_axis is None else 1
        assert call.smaller(use, unit, 1)().numel() == call.output_elements * unit // use.out_size


def test_expected_latency_is_that_of_the_network() -> None:
    gated = small_gated()
    latency = gated.engine.time_layers()
    measured = median(time_networks({"dense": gated.host}, gated.engine.example, 15, 1.0)["dense"])
    assert 0.1 * measured < latency.dense < 10 * measured  # another program may run beside; the unit is right
    everything, nothing = torch.ones(gated.plan.num_gates), torch.zeros(gated.plan.num_gates)
    assert gated.engine.snapshot().share(everything > 0, "latency") == pytest.approx(1.0)
    half = everything.clone()
    half[::2] = 0
    network = gated.engine.snapshot()
    assert network.share(nothing > 0, "latency") < network.share(half > 0, "latency") < 1
    penalty = gated.penalty("latency")
    gradients = torch.autograd.grad(penalty, list(gated.gate_parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert any(bool((gradient > 0).any()) for gradient in gradients)


def test_a_budget_of_latency_is_followed() -> None:
    gated = small_gated()
    gated.generator.start_from(torch.randn(gated.plan.num_gates, generator=torch.Generator().manual_seed(0)))
    gated = with_config(gated, budget=0.6, of="latency")
    threshold = gated.engine.threshold
    assert threshold is not None
    threshold.advance(1.0, 0.6)
    threshold.solve(gated.generator().detach())
    assert float(gated.penalty("latency").detach()) == pytest.approx(0.6, abs=0.01)


def test_what_was_measured_is_kept_and_damage_is_measured_again(cache: Path) -> None:
    first = small_gated().engine.time_layers()
    files = sorted(cache.rglob("*.json"))
    assert len(files) == 4 + 1  # three convolutions, a linear layer, and the whole
    again = small_gated().engine.time_layers()
    assert torch.equal(first.seconds, again.seconds) and first.calibration == again.calibration
    for number, file in enumerate(files):
        file.write_text(["{", "[]", '{"value": 3}', file.read_text().replace("0.", "-0."), ""][number])
    mended = small_gated().engine.time_layers()
    assert mended.dense > 0 and bool((mended.seconds > 0).all())


def test_a_folder_that_cannot_be_written_does_not_stop_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEPL0_CACHE", str(tmp_path / "file"))
    assert small_gated().engine.time_layers().dense > 0


def test_coefficients_are_never_negative() -> None:
    """A fit that would be best with a negative coefficient goes without it."""
    found = fit([[1.0, 1.0, 1.0], [2.0, 1.5, 1.0], [3.0, 0.5, 1.0]], [1.0, 1.5, 5.0], [1.0, 1.0, 1.0])
    assert min(found) >= 0
