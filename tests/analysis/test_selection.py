"""Which groups are chosen, and in which order they come."""

from __future__ import annotations

import pytest
import torch

import depl0
from depl0._util.optional import import_torchvision
from depl0.analysis.plan import Group
from depl0.app.models.resnet import CifarResNet
from tests.networks.structures import STRUCTURES

IMAGE = torch.randn(2, 3, 16, 16)


def network() -> CifarResNet:
    return CifarResNet(2, num_classes=10, shortcut="A", in_channels=3)


@pytest.fixture(scope="module")
def everything() -> depl0.analysis.Plan:
    return depl0.plan(network(), IMAGE)


def names(plan: depl0.analysis.Plan) -> list[str]:
    return [group.name for group in plan.groups]


def test_inner_groups_of_cifar_resnets_are_the_first_convolutions() -> None:
    plan = depl0.plan(network(), IMAGE, groups="inner")
    assert names(plan) == [f"layer{stage}.{block}.conv1" for stage in (1, 2, 3) for block in range(2)]
    assert any("groups='inner'" in reason for reason in plan.unprunable())


def test_inner_groups_of_imagenet_resnets_are_the_stem_and_the_first_two_convolutions() -> None:
    """The stem feeds convolutions only: unlike on CIFAR, it is never added to anything."""
    depths = (1, 2, 1, 1)
    models = import_torchvision().models
    plan = depl0.plan(models.ResNet(models.resnet.Bottleneck, depths, 10), torch.randn(2, 3, 32, 32), groups="inner")
    blocks = [(stage, block) for stage, count in enumerate(depths, 1) for block in range(count)]
    assert names(plan) == ["conv1"] + [f"layer{stage}.{block}.conv{i}" for stage, block in blocks for i in (1, 2)]


def test_groups_come_in_order_of_execution(everything: depl0.analysis.Plan) -> None:
    executed = [report.layer for report in everything.layers]
    positions = [executed.index(name) for name in names(everything)]
    assert positions == sorted(positions)
    offsets = [group.offset for group in everything.groups]
    assert offsets == [sum(g.size for g in everything.groups[:i]) for i in range(len(offsets))]
    assert everything.groups[0].shared and everything.groups[0].layers[:2] == ("conv1", "layer1.0.conv2")


def test_names_and_patterns_choose(everything: depl0.analysis.Plan) -> None:
    model = network()
    assert names(depl0.plan(model, IMAGE, groups=["layer1.0.conv1"])) == ["layer1.0.conv1"]
    assert names(depl0.plan(model, IMAGE, groups=("layer3.*",))) == ["layer3.0.conv1", "layer3.1.conv1"]
    without = depl0.plan(model, IMAGE, groups=["-conv1", "-layer2.*"])
    assert names(without) == [n for n in names(everything) if n != "conv1" and not n.startswith("layer2")]
    both = depl0.plan(model, IMAGE, groups=["layer2.*", "-layer2.1.*"])
    assert names(both) == ["layer2.0.conv1"]
    assert any("left out" in reason for reason in both.unprunable())


def test_function_chooses(everything: depl0.analysis.Plan) -> None:
    def wide(group: Group) -> bool:
        return group.size >= 64

    plan = depl0.plan(network(), IMAGE, groups=wide)
    assert names(plan) == [g.name for g in everything.groups if g.size >= 64] and len(plan.groups) > 0


def test_left_out_groups_have_no_gates_and_are_not_cut() -> None:
    structure = STRUCTURES["Residual"]
    gated = depl0.attach(structure.build(), structure.inputs, groups=["one"]).eval()
    gated.fix_gates(torch.zeros(gated.plan.num_gates))
    compact = gated.extract()
    assert gated.plan.num_gates == 6
    assert compact.one.out_channels == 1 and compact.stem.out_channels == 8 and compact.two.out_channels == 8


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ("inner groups", "groups must be 'all', 'inner', a list of names or a function, got 'inner groups' instead"),
        ([], r"groups must name at least one group, got \[\] instead"),
        (["-zzz"], "groups names 'zzz'.*\nhint: depl0.plan"),
    ],
)
def test_wrong_choices_are_refused(groups: object, text: str) -> None:
    structure = STRUCTURES["Residual"]
    with pytest.raises(depl0.errors.InputError, match=f"(?s){text}"):
        depl0.plan(structure.build(), structure.inputs, groups=groups)


def test_choosing_nothing_says_so() -> None:
    with pytest.raises(depl0.errors.NothingToPruneError, match=r"is left out \(groups=function\)"):
        depl0.plan(STRUCTURES["Residual"].build(), STRUCTURES["Residual"].inputs, groups=lambda group: False)


def test_plan_is_readable_and_plain_data(everything: depl0.analysis.Plan) -> None:
    text = str(everything)
    assert "layer2.0.conv2" in text and "padded with zeros" in text and f"{everything.num_gates} gates" in text
    data = everything.to_dict()
    assert data["gates"] == everything.num_gates and data["groups"][0]["name"] == "conv1"
    assert sum(everything.unprunable().values()) == everything.channels - everything.prunable_channels
