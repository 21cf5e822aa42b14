"""What a run starts from, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from depl0.app.data import open_data
from depl0.app.models.spec import factory
from depl0.app.recipes import get, with_overrides
from depl0.app.training import setup as start
from depl0.app.training.setup import model_factory

NETS = """
import torch
from torch import nn
def fresh(pretrained=False):
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                            nn.Linear(8, 10))
    if pretrained:
        nn.init.constant_(network[5].bias, 7.0)
    return network
"""


def begin(**fields: object) -> start.InitialNetwork:
    recipe = with_overrides(get("digits"), {name.replace("__", "."): value for name, value in fields.items()})
    data = open_data("digits")
    return start.initial_network(recipe, data, model_factory(recipe, data))


def test_a_file_for_other_classes(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    other = factory("small_cnn", num_classes=3, in_channels=1, image_size=8)()
    save_file(other.state_dict(), file)
    found = begin(model__weights=str(file))
    assert not found.trained
    (note,) = found.notes
    assert note.startswith(f"weights from {file} (3 classes); ") and "is initialised for 10" in note
    first = next(iter(other.state_dict()))
    assert torch.equal(found.host.state_dict()[first], other.state_dict()[first])


def test_a_function_that_returns_a_trained_network(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    assert not begin(model__spec=f"{tmp_path}/nets.py:fresh").trained
    asked = begin(model__spec=f"{tmp_path}/nets.py:fresh", model__pretrained=True)
    assert asked.trained and asked.notes == ()
    assert asked.host.get_parameter("5.bias").tolist() == [7.0] * 10


def test_published_weights_with_a_new_head(monkeypatch: pytest.MonkeyPatch) -> None:
    original = factory("timm:mobilenetv3_small_050", num_classes=1000, in_channels=1, image_size=8)()
    published = ("timm (mobilenetv3_small_050.lamb_in1k)", original.state_dict())
    monkeypatch.setattr(start, "published_weights", lambda spec, in_channels: published)
    found = begin(model__spec="timm:mobilenetv3_small_050.lamb_in1k", model__pretrained=True)
    assert found.notes == (
        "weights from timm (mobilenetv3_small_050.lamb_in1k) (1,000 classes); classifier is initialised for 10",
    )
    assert torch.equal(found.host.get_parameter("conv_stem.weight"), original.get_parameter("conv_stem.weight"))
    unused = begin(model__spec="timm:mobilenetv3_small_050.lamb_in1k")
    assert not unused.trained
    assert unused.notes[0].startswith("warning: timm:mobilenetv3_small_050.lamb_in1k starts untrained; --pretrained")
