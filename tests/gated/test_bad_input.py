"""Bad input gets a clear error: what was wanted, what was found, what to do next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.networks.structures import Classifier, NoNorm, Residual, conv, image
from torch import Tensor, nn

import depl0


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (None, r"model must be a torch\.nn\.Module, got NoneType instead.*\nhint: pass the network itself"),
        (NoNorm, r"got type instead.*\nhint: pass an instance: NoNorm\(\.\.\.\)"),
        (nn.DataParallel(NoNorm()), r"wrapped in DataParallel.*\nhint: pass model\.module"),
    ],
)
def test_not_a_host(model: Any, text: str) -> None:
    for function in (depl0.attach, depl0.plan, depl0.cost):
        with pytest.raises(depl0.errors.InputError, match=f"(?s){text}"):
            function(model, image())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_host() -> None:
    scripted = torch.jit.trace(NoNorm().eval(), image())
    with pytest.raises(
        depl0.errors.InputError, match=r"(?s)TorchScript.*\nhint: pass the network it was scripted from"
    ):
        depl0.attach(scripted, image())


def test_compiled_host() -> None:
    with pytest.raises(
        depl0.errors.InputError, match=r"(?s)compiled by torch\.compile.*\nhint: .*compile the gated model"
    ):
        depl0.attach(torch.compile(NoNorm(), backend="eager"), image())


def test_host_that_is_gated_already() -> None:
    gated = depl0.attach(NoNorm(), image())
    for model in (gated, nn.Sequential(gated)):
        for function in (depl0.attach, depl0.plan):
            with pytest.raises(depl0.errors.InputError, match=r"(?s)already gated.*\nhint: .*\.host"):
                function(model, image())


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (None, "got NoneType instead"),
        ({}, "holds no tensor"),
        (
            image(5),
            r"run on example_inputs \(\(2, 5, 8, 8\)\): RuntimeError at one: .*\nhint: pass inputs of the shape",
        ),
        ({"y": image()}, "TypeError at NoNorm"),
    ],
)
def test_wrong_example_inputs(inputs: Any, text: str) -> None:
    for function in (depl0.attach, depl0.plan, depl0.cost):
        with pytest.raises(depl0.errors.InputError, match=f"(?s){text}"):
            function(NoNorm(), inputs)


class Branches(Classifier):
    """Branches on values, in the mode it is told."""

    def __init__(self, mode: bool, limit: float = 0.0) -> None:
        super().__init__(4)
        self.one, self.mode, self.limit = conv(3, 4), mode, limit

    def features(self, x: Tensor) -> Tensor:
        x = self.one(x)
        if self.training == self.mode and float(x.sum()) > self.limit:
            x = x + 1
        return x


def test_untraceable_network() -> None:
    with pytest.raises(depl0.errors.TraceError) as error:
        depl0.attach(Branches(False), image())
    text = str(error.value)
    assert "the evaluation pass of Branches cannot be recorded" in text
    assert "in features" in text and "float(x.sum()) > self.limit" in text and "test_bad_input.py" in text
    assert "\nhint: " in text and "torch.where" in text


def test_a_training_pass_that_cannot_be_recorded_is_told() -> None:
    """LayerDrop, for one: what is pruned is exact, and the plan says what was not seen."""
    plan = depl0.plan(Branches(True, limit=1e9), image())  # a branch that no trial takes
    assert any("the training pass of Branches cannot be recorded" in what for what in plan.refused)
    assert "not verified: recording the training pass" in str(plan)


def test_nothing_prunable_is_grouped_by_reason() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = conv(3, 8), conv(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).softmax(1))

    with pytest.raises(depl0.errors.NothingToPruneError) as error:
        depl0.attach(Single(), image())
    text = str(error.value)
    assert "8 channels: softmax over channels" in text and "5 channels: reaches the network's output" in text
    with pytest.raises(depl0.errors.NothingToPruneError, match="no convolution or linear layer"):
        depl0.attach(nn.BatchNorm2d(3), image())


@pytest.fixture
def gated() -> depl0.GatedModel:
    return depl0.attach(Residual(), image(), generator="independent")


def test_wrong_gates(gated: depl0.GatedModel) -> None:
    count = gated.plan.num_gates
    with pytest.raises(
        depl0.errors.GateError, match=rf"(?s)vector of {count} values.*got shape \(.*\nhint: plan\.groups"
    ):
        gated.fix_gates(torch.ones(count + 1))
    for value, text in ((1.5, "1.5"), (float("nan"), "nan")):
        gates = torch.ones(count)
        gates[9] = value
        with pytest.raises(
            depl0.errors.GateError, match=rf"must lie in \[0, 1\], got {text}.* at position 9 \(group one\)"
        ):
            gated.fix_gates(gates)
    assert gated._fixed is None
    gated.fix_gates([0.5] * count)  # anything that is a vector of numbers
    assert torch.equal(gated.evaluation_gates(), torch.full((count,), 0.5))


def test_log_alpha_that_is_not_finite(gated: depl0.GatedModel) -> None:
    with torch.no_grad():
        for parameter in gated.gate_parameters():
            parameter.view(-1)[-1] = float("nan")
    for function in (gated.extract, gated.evaluation_gates):
        with pytest.raises(depl0.errors.GateError, match=r"(?s)log alpha is nan at gate \d+ \(group .*\nhint: "):
            function()
