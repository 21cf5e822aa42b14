"""Published weights, and what is said where they cannot be had."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from depl0._util.optional import import_torchvision
from depl0.app.models import pretrained
from depl0.app.models.pretrained import published_weights
from depl0.errors import InputError


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    monkeypatch.setattr(pretrained, "_is_cached", lambda repository: False)


def test_the_file_to_give_where_there_is_no_connection(
    offline: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    import_torchvision()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for spec, file in (
        ("torchvision:resnet18", "https://download.pytorch.org/models/resnet18-f37072fd.pth"),
        (
            "timm:mobilenetv2_050.lamb_in1k",
            "https://huggingface.co/timm/mobilenetv2_050.lamb_in1k/resolve/main/model.safetensors",
        ),
    ):
        with pytest.raises(InputError) as caught:
            published_weights(spec, 3)
        assert f"the trained weights of {spec} cannot be downloaded: " in caught.value.message
        assert "Name or service not known" in caught.value.message
        assert caught.value.hint == (
            f"fetch {file} where there is a connection, and give the file instead: --weights FILE."
        )


def test_a_network_without_published_weights() -> None:
    import_torchvision()
    with pytest.raises(InputError, match="timm publishes no trained weights for test_vit4"):
        published_weights("timm:test_vit4", 3)


def test_weights_of_timm_have_their_own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = SimpleNamespace(
        is_model=lambda name: True,
        get_pretrained_cfg=lambda name: SimpleNamespace(
            hf_hub_id="timm/net.tag", url="", file="", architecture="net", tag="tag"
        ),
        create_model=lambda name, pretrained, in_chans: nn.Linear(in_chans, 1000 if pretrained else 1),
    )
    monkeypatch.setattr(pretrained, "import_library", lambda package, module: timm)
    monkeypatch.setattr(pretrained, "check_known", lambda library, name: None)
    monkeypatch.setattr(pretrained, "_is_cached", lambda repository: True)
    found = published_weights("timm:net", in_channels=2)
    assert found.source == "timm (net.tag)"
    assert found.tensors["weight"].shape == (1000, 2)
