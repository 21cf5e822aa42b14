"""Whatever is done or fails, the host stays what it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.networks.structures import Residual, StochasticDepth, image
from tests.support.compare import call, distance, liven, random_gates
from tests.support.portrait import Portrait
from torch import Tensor, nn

import depl0
from depl0.surgery import slicing as counting

pytestmark = pytest.mark.structures


@pytest.fixture
def host() -> nn.Module:
    torch.manual_seed(0)
    model = liven(Residual(), image())
    model.train()
    model.norms[1].eval()
    model.two.weight.requires_grad_(False)
    model.one.register_forward_hook(lambda *_: None)
    return model


def test_random_state() -> None:
    portrait = Portrait(StochasticDepth())
    depl0.plan(portrait.model, image())
    gated = depl0.attach(portrait.model, image(), rng=torch.Generator())
    gated.extract()
    portrait.check()


def test_attach_and_use(host: nn.Module) -> None:
    before = call(host.eval(), image())
    portrait = Portrait(host)
    gated = depl0.attach(host, image(), rng=torch.Generator().manual_seed(0))
    portrait.check()
    gated.fix_gates(random_gates(gated.plan.num_gates))
    assert distance(before, call(gated, image())) > 1e-3
    gated.penalty("macs")
    gated.kept_cost()
    portrait.check()
    assert gated.host is host
    assert distance(before, call(host, image())) == 0


def test_extract(host: nn.Module) -> None:
    gated = depl0.attach(host, image())
    gated.fix_gates(random_gates(gated.plan.num_gates))
    portrait = Portrait(host)
    compact = gated.extract()
    portrait.check()
    with torch.no_grad():
        for tensor in [*compact.parameters(), *compact.buffers()]:
            tensor.zero_()
    portrait.check()
    gates = torch.zeros(gated.plan.num_gates)
    gated.fix_gates(gates)
    gated.extract(remove_blocks=True)
    portrait.check()


def test_failed_extract(host: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = depl0.attach(host, image())
    gated.fix_gates(random_gates(gated.plan.num_gates))
    portrait = Portrait(host)
    monkeypatch.setattr(counting, "slice_module", lambda model, positions: model.one.weight.zero_())
    with torch.no_grad(), pytest.raises(depl0.errors.CertificateError):
        gated.extract()
    portrait.check()


class HooksItself(nn.Module):
    """Installs hooks on its first pass, as networks of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.h = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.hooked = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.hooked:
            self.a.register_forward_hook(lambda module, inputs, output: output * 2)
            self.b.register_forward_pre_hook(lambda module, inputs, kwargs: None, with_kwargs=True)
            self.hooked = True
        return self.h(torch.relu(self.b(torch.relu(self.a(x)))))


@pytest.mark.parametrize("first_pass", [False, True])
def test_hooks_that_a_host_installs_on_its_first_pass(first_pass: bool) -> None:
    torch.manual_seed(0)
    host, x = HooksItself().eval(), torch.randn(2, 6)
    with torch.no_grad():
        expected = copy.deepcopy(host)(x)
        if first_pass:
            host(x)
        portrait = Portrait(host)
        gated = depl0.attach(host, x, rng=torch.Generator().manual_seed(0))
        gated.fix_gates(torch.ones(gated.plan.num_gates))
        portrait.check()
        assert torch.equal(gated(x), expected) and torch.equal(host(x), expected)
        compact = gated.extract().eval()
        assert torch.allclose(compact(x), expected) and torch.equal(host(x), expected)
    assert len(host.a._forward_hooks) == len(host.b._forward_pre_hooks) == len(compact.a._forward_hooks) == 1


@pytest.mark.parametrize("options", [{"generator": "nothing"}, {"example_inputs": torch.randn(2, 5, 8, 8)}])
def test_failed_attach(options: dict[str, Any]) -> None:
    model = Residual().train()
    portrait = Portrait(model)
    options = {"example_inputs": image(), **options}
    with pytest.raises(depl0.errors.InputError):
        depl0.attach(model, **options)
    portrait.check()
