"""Gated network = compact network, over public networks of many families.

One member of every family that must work, and another one at random; ``make zoo`` runs them all and prints a table.
"""

from __future__ import annotations

import random

import pytest

import depl0
from tests.zoo.check import check
from tests.zoo.networks import NETWORKS, SHALLOW, SMALL, Entry

pytestmark = pytest.mark.zoo

FAMILIES = {
    "ResNet": "shallow:resnet50",
    "CIFAR ResNet": "shallow:resnet56",
    "VGG": "depl0:vgg16",
    "DenseNet": "shallow:densenet",
    "MobileNet": "shallow:mobilenet",
    "EfficientNet": "shallow:efficientnet",
    "RegNet": "shallow:regnet",
    "ConvNeXt V2": "shallow:convnextv2",
    "Inception": "torchvision:googlenet",
    "ShuffleNet": "shallow:shufflenet",
    "Res2Net": "shallow:res2net",
    "MobileOne": "shallow:mobileone",
    "ResNeSt": "shallow:resnest",
}


def _chosen() -> list[Entry]:
    ours = {entry.name for entry in NETWORKS if entry.name.startswith(("depl0:", "small:"))}
    always = {*FAMILIES.values(), *ours} - {"depl0:resnet56-A"}  # the shallow one is of its kind
    sample = {f"timm:{name}" for name in random.Random(3).sample(SMALL, 1)}
    return [e for e in [*NETWORKS, *SHALLOW] if e.name in always | sample]


def test_the_zoo_is_wide_and_nearly_all_of_it_can_be_pruned() -> None:
    names = [entry.name for entry in NETWORKS]
    assert len(names) == len(set(names)) >= 200
    assert sum(entry.prunable for entry in NETWORKS) >= 0.95 * len(NETWORKS)
    assert set(FAMILIES.values()) <= {*names, *(entry.name for entry in SHALLOW)}


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", _chosen(), ids=lambda entry: entry.name)
def test_compact_equals_gated(entry: Entry, record_property: pytest.RecordProperty) -> None:
    if not entry.prunable:
        with pytest.raises(depl0.errors.NothingToPruneError, match="nothing can be pruned"):
            check(entry)
        return
    row = check(entry)
    record_property("row", str(row))
    assert row.exact
    assert row.share > 0
    assert row.macs_left < 1
