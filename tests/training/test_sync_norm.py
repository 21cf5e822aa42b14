"""Synchronised batch norms: PyTorch's own, on GPUs alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from depl0.app.runtime.network import synced_norms

pytestmark = pytest.mark.processes


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[nn.SyncBatchNorm]:
    """Let the code believe that it runs on a GPU, where PyTorch's forward gives plain batch norm."""
    called: list[nn.SyncBatchNorm] = []

    def forward(norm: nn.SyncBatchNorm, images: Tensor) -> Tensor:
        called.append(norm)
        assert norm.process_group is None and norm.momentum is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        return F.batch_norm(
            images, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps
        )

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", forward)
    return called


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))


def test_torchs_own_works_on_the_networks_own_state(on_a_gpu: list[nn.SyncBatchNorm]) -> None:
    model, images = network(), torch.randn(6, 3, 9, 9)
    plain = copy.deepcopy(model)
    with synced_norms(model, True):
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [type(module) for module in model] == [type(module) for module in plain]
        found = model(images)
        found.square().sum().backward()
    expected = plain(images)
    expected.square().sum().backward()
    assert len(on_a_gpu) == 2
    torch.testing.assert_close(found, expected)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_nothing_is_left_afterwards(on_a_gpu: list[nn.SyncBatchNorm]) -> None:
    model = network()
    before = [set(vars(module)) for module in model]
    with synced_norms(model, True):
        model(torch.randn(6, 3, 9, 9))
    assert [set(vars(module)) for module in model] == before
    model(torch.randn(6, 3, 9, 9))
    assert len(on_a_gpu) == 2  # not called any more


def test_torchs_own_code_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU it comes as far as its refusal of other devices."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with synced_norms(model := network(), True), pytest.raises(ValueError, match="SyncBatchNorm expected input"):
        model(torch.randn(6, 3, 9, 9))
