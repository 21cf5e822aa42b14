"""Activation checkpointing around a gated network, and inside its host, where parts are computed again in backward."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

import depl0

Inner = Literal["none", "parts", "nested", "reentrant"]


class Host(nn.Module):
    """Checkpoints its second block in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: Inner = "none"
        self.first = self._block(1)
        self.second = self._block(8)
        self.last = nn.Linear(8, 4)

    @staticmethod
    def _block(channels: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    def _nested(self, x: Tensor) -> Tensor:
        return checkpoint(self.second, checkpoint(self.first, x, use_reentrant=False), use_reentrant=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.inner == "nested":
            return self.last(checkpoint(self._nested, x, use_reentrant=False).mean((2, 3)))
        x = self.first(x)
        if self.inner == "none":
            x = self.second(x)
        else:
            x = checkpoint(self.second, x, use_reentrant=self.inner == "reentrant")
        return self.last(x.mean((2, 3)))


def gradients(inner: Inner = "none", outer: bool = False) -> dict[str, Tensor]:
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(0)
    host = Host()
    gated = depl0.attach(host, x, start=0.5, rng=torch.Generator().manual_seed(0))
    own = list(host.parameters())
    host.inner = inner
    torch.manual_seed(1)
    outputs = checkpoint(gated, x, use_reentrant=False) if outer else gated(x)
    outputs.square().sum().backward()
    assert all(a is b for a, b in zip(own, host.parameters(), strict=True))
    return {name: parameter.grad for name, parameter in gated.named_parameters()}


def test_checkpointing_around_the_gated_network_samples_the_same_gates_again() -> None:
    torch.testing.assert_close(gradients(outer=True), gradients(), rtol=0, atol=0)


@pytest.mark.parametrize("inner", ["parts", "nested"])
def test_parts_of_the_host_are_computed_again_with_the_same_gates(inner: Inner) -> None:
    torch.testing.assert_close(gradients(inner), gradients(), rtol=0, atol=0)


def test_reentrant_checkpointing_inside_the_host_is_refused() -> None:
    with pytest.raises(depl0.errors.InputError, match=r"use_reentrant=True.*\n.*use_reentrant=False"):
        gradients("reentrant")


def test_gates_for_each_image_refuse_checkpointing() -> None:
    host, x = Host(), torch.randn(4, 1, 8, 8)
    gated = depl0.attach(host, x, draw="image").train()
    host.inner = "parts"  # as gradient_checkpointing_enable() does after attach
    with pytest.raises(depl0.errors.InputError, match="does not work with activation checkpointing"):
        gated(x)


class Plain(nn.Module):
    """Says nothing of checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.one(x).relu()))


def gradients_of(host: Plain, wrapped: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(0)
    for parameter in host.parameters():
        nn.init.normal_(parameter)
    gated = depl0.attach(host, torch.ones(2, 6), start=0.5, rng=torch.Generator().manual_seed(0)).train()
    if wrapped:
        host.two = checkpoint_wrapper(host.two)
    torch.manual_seed(1)
    gated(torch.ones(2, 6)).square().sum().backward()
    return {name: parameter.grad for name, parameter in gated.named_parameters()}


def test_a_part_that_is_wrapped_after_attach() -> None:
    wrapped = gradients_of(Plain(), wrapped=True)
    torch.testing.assert_close(list(wrapped.values()), list(gradients_of(Plain()).values()), rtol=0, atol=0)


def test_a_gated_layer_that_is_wrapped_by_itself_after_attach_is_refused() -> None:
    host = Plain()
    gated = depl0.attach(host, torch.ones(2, 6), start=0.5).train()
    gated(torch.ones(2, 6))
    for name, layer in host.named_children():
        setattr(host, name, checkpoint_wrapper(layer))
    with pytest.raises(depl0.errors.InputError, match="is wrapped in CheckpointWrapper, which hides its parameters"):
        gated(torch.ones(2, 6))


def test_checkpointing_elsewhere_is_left_alone() -> None:
    before = vars(checkpointing).copy()
    gradients("parts")
    with pytest.raises(depl0.errors.InputError):
        gradients("reentrant")
    assert vars(checkpointing) == before
    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=True).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x).detach())
