"""Habits of ordinary networks that once ended in an error: pruned exactly, or refused in words, before any training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import Classifier, NoNorm, TwoConvs, conv, image
from tests.support.compare import call, distance, liven, pruned, random_gates
from torch import Tensor, nn

import depl0
from depl0._util.optional import import_torchvision
from depl0.host.inputs import output_tensors

pytestmark = pytest.mark.structures


def same(gated: nn.Module, compact: nn.Module, inputs: Any) -> bool:
    left, right = output_tensors(call(gated, inputs)), output_tensors(call(compact, inputs))
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(left, right, strict=True))


class TwoNames(Classifier):
    """One convolution is there by its own name, and again in a sequence."""

    def __init__(self) -> None:
        super().__init__(6)
        self.conv1 = conv(3, 8)
        self.body = nn.Sequential(self.conv1, nn.ReLU(), conv(8, 6), nn.ReLU())

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_a_module_with_two_names(tmp_path: Path) -> None:
    gated, compact = pruned(TwoNames(), image())
    assert same(gated, compact, image()) and gated.plan.num_gates == 14
    assert compact.conv1 is compact.body[0] and compact.conv1.out_channels < 8
    assert distance(call(compact, image()), call(depl0.load(depl0.save(compact, tmp_path), TwoNames), image())) == 0
    gated.fix_gates(torch.cat([torch.zeros(8), torch.ones(6)]))
    assert same(gated, gated.extract(remove_blocks=True).eval(), image())


def closed_one_by_one(model: nn.Module, inputs: Tensor) -> int:
    gated = depl0.attach(liven(model, inputs), inputs).eval()
    for group in gated.plan.groups:
        gates = random_gates(gated.plan.num_gates, 4).clamp_min(0.1)
        gates[group.gates] = 0
        gated.fix_gates(gates)
        compact = gated.extract(remove_blocks=True).eval()
        assert distance(call(gated, inputs), call(compact, inputs)) < 1e-5
    return len(gated.plan.groups)


def test_blocks_whose_weight_is_read_stay() -> None:
    """The fast path of torch's transformer looks at the weights of its layers."""
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    assert closed_one_by_one(layer, torch.randn(2, 5, 8)) == 3  # queries and keys, values, the hidden layer


class InPlaceAfterRemoval(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.down = conv(3, 8), conv(8, 6), conv(3, 6)

    def features(self, x: Tensor) -> Tensor:
        y = self.two(F.relu(self.one(x)))
        y += self.down(x)
        return F.relu(y, inplace=True)


def test_a_constant_may_be_written_to() -> None:
    assert closed_one_by_one(InPlaceAfterRemoval(), image()) == 2


# -- what is kept from the last pass -----------------------------------------------------------------------------------


class KeepsItsMaps(NoNorm):
    def features(self, x: Tensor) -> Tensor:
        self.maps = [F.relu(self.one(x))]
        return self.two(self.maps[0])


def test_networks_that_keep_results() -> None:
    gated = depl0.attach(KeepsItsMaps(), image())
    gated.train()(image()).sum().backward()
    gated.fix_gates(random_gates(gated.plan.num_gates))
    assert same(gated.eval(), gated.extract().eval(), image())
    gated.train()(image())
    gated.remove(random_gates(gated.plan.num_gates) == 0)
    gated.cut()


# -- inputs and outputs ------------------------------------------------------------------------------------------------


class Masked(TwoConvs):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(F.relu(self.two(F.relu(self.one(x)))).mean((2, 3))[mask])


def test_masks_keep_their_values() -> None:
    inputs = image(), torch.tensor([True, False])
    gated, compact = pruned(Masked(), inputs)
    assert same(gated, compact, inputs)


@dataclass
class Scores:
    scores: Tensor
    extra: dict[str, Tensor]


class Result:
    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "dataclass": lambda y: Scores(y, {"mean": y.mean()}),
    "object": Result,
}


class Returns(NoNorm):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return OUTPUTS[self.kind](super().forward(x))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_any_class(kind: str, tmp_path: Path) -> None:
    gated, compact = pruned(Returns(kind), image())
    assert same(gated, compact, image()) and gated.plan.num_gates == 14
    assert type(call(compact, image())) is type(OUTPUTS[kind](torch.ones(1)))
    assert same(compact, depl0.load(depl0.save(compact, tmp_path), lambda: Returns(kind)).eval(), image())


# -- only a part is frozen ---------------------------------------------------------------------------------------------


class LayerDrop(Classifier):
    def __init__(self) -> None:
        super().__init__(8)
        self.stem, self.blocks = conv(3, 8), nn.ModuleList([conv(8, 8) for _ in range(3)])

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.training and float(torch.rand(())) < 0.25:
                continue
            x = x + F.relu(block(x))
        return x


def test_a_part_is_frozen_and_not_the_whole() -> None:
    gated, compact = pruned(LayerDrop(), image())
    assert same(gated, compact, image()) and gated.plan.num_gates == 8


def test_feature_extractors_of_torchvision() -> None:
    """A copied fx.GraphModule forgets its mode."""
    torchvision = import_torchvision()
    from torchvision.models.feature_extraction import create_feature_extractor

    network = create_feature_extractor(torchvision.models.squeezenet1_1(weights=None), ["features.6", "features.12"])
    gated, compact = pruned(network.eval(), image(3, 64, 1))
    assert same(gated, compact, image(3, 64, 1))


class TakesTheShapeOfItsInput(nn.Module):
    def __init__(self, stem: int) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.head = conv(3, stem), conv(stem, 8), conv(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(F.relu(self.stem(x))))
        return self.head(F.relu(self.two(x)).reshape(x.shape).mean((2, 3)))


@pytest.mark.parametrize("stem", [4, 7])
def test_a_trial_does_not_pass_because_two_widths_are_equal_by_chance(stem: int) -> None:
    plan = depl0.plan(TakesTheShapeOfItsInput(stem), image())
    assert {group.name for group in plan.groups} == {"stem"}


# -- what counts is reported -------------------------------------------------------------------------------------------


def test_the_least_cost_is_that_of_the_smallest_network() -> None:
    gated = depl0.attach(NoNorm(), image()).eval()
    gated.fix_gates(torch.zeros(gated.plan.num_gates))
    counted = depl0.cost(gated.extract(), image())
    assert gated.plan.least_cost == (counted.params, counted.macs)
    assert gated.plan.least("macs") == counted.macs / gated.dense_cost.macs < 0.2
    assert f"minimum reachable: {gated.plan.least():.1%} of the MACs" in str(gated.plan)
    assert gated.plan.to_dict()["least_params"] == counted.params / gated.dense_cost.params


class Crossed(nn.Module):
    """Halves are tied by chunk, pairs by a grouped convolution: in the end all channels hang together."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pairs, self.two, self.last = conv(3, 4), conv(4, 4, groups=2), conv(4, 6), conv(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.one(x).chunk(2, 1)
        return self.last(F.relu(self.two(self.pairs(torch.cat([F.relu(left), right], 1)))))


def test_groups_of_one_gate_are_dropped() -> None:
    plan = depl0.plan(Crossed(), image())
    assert [(group.name, group.size) for group in plan.groups] == [("two", 6)]
    assert plan.unprunable()["all channels are mutually coupled (at one)"] == 8
