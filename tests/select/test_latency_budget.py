"""A budget of latency in a whole run, and the search for gates that keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import depl0
from depl0.app.methods.base import rank_within_groups
from depl0.host.inputs import ExampleInputs
from depl0.select.latency import TRIES, measured_share, select_within_latency
from tests.networks.tiny import CLASSES, run, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")


class Wide(nn.Sequential):
    """Wide enough for its time to lie in the convolutions."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Conv2d(1, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(128, CLASSES),
        )  # fmt: skip


def test_a_run_keeps_its_record(tmp_path: Path) -> None:
    spec = "tests.select.test_latency_budget:Wide"
    recipe = tiny_recipe(model__spec=spec, gates__of="latency", gates__budget=0.8, gates__round_to=2)
    summary = run(recipe, tmp_path / "run")
    assert summary["budget_of"] == "latency" and summary["round_to"] == 2
    assert 0 < summary["budget_reached"] < 1.5
    found = summary["latency_budget"]
    within = [attempt["measured"] for attempt in found["attempts"] if attempt["measured"] <= 0.8]
    assert found["measured"] == max(within, default=min(attempt["measured"] for attempt in found["attempts"]))
    assert 1 <= len(found["attempts"]) <= TRIES
    assert any(found["measured"] == attempt["measured"] for attempt in found["attempts"])
    assert all(group["open"] % 2 == 0 for group in summary["groups"].values())


def test_the_network_found_is_faster() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for into in (3, 64, 64):
        layers += [nn.Conv2d(into, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)).eval()
    gated = depl0.attach(model, torch.randn(1, 3, 24, 24), generator="independent")
    gated.generator.start_from(rank_within_groups(gated.plan, torch.rand(gated.plan.num_gates)) + 6.0)
    config = gated.config.changed(budget=0.5, of="latency", round_to=8)
    _, found = select_within_latency(gated.snapshot(), config)
    assert found["measured"] < 0.9  # generous: the machine may be busy


def test_latency_is_measured_in_onnx_runtime() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    wide, narrow = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).eval(), nn.Linear(512, 8).eval()
    example = ExampleInputs((torch.randn(64, 512),), {})
    assert measured_share(narrow, wide, example, "onnxruntime") < 0.5
    with pytest.raises(depl0.errors.InputError, match="runtime must be 'pytorch' or 'onnxruntime'"):
        depl0.GateConfig(runtime="tflite")  # type: ignore[arg-type]
