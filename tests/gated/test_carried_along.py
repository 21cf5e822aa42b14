"""What hangs on the network's parameters and modules goes on after a cut: optimizers, gradients, hooks, averages."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.networks.loops import BATCHES, LOSS, STEPS, Net, batch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.swa_utils import AveragedModel

import depl0
from depl0.errors import InputError

pytestmark = pytest.mark.usefixtures("remembered_plans")


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation: a step up, then a step of the optimizer inside, whose groups are its own."""

    def __init__(self, params: Any, inner: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(params, {"rho": 0.05, **options})
        self.inner = inner(self.param_groups, **options)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def up(self) -> None:
        weights = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in weights]).norm()
        for p in weights:
            self.state[p]["before"] = p.detach().clone()
            p.add_(p.grad, alpha=0.05 / float(norm + 1e-12))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["before"])
        self.inner.step()


def attached() -> depl0.GatedModel:
    torch.manual_seed(0)
    return depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.4, generator="independent").train()


def third(gated: depl0.GatedModel) -> Tensor:
    return torch.arange(gated.plan.num_gates) % 3 == 1


def test_an_optimizer_inside_another_is_cut_too() -> None:
    gated = attached()
    sam = SAM(gated.host.parameters(), torch.optim.Adam, lr=0.01)
    search = depl0.Search(gated, STEPS, optimizers=[sam], calibrate=BATCHES, loss=LOSS)

    def step(number: int) -> None:
        x, y = batch(number)
        for then in (sam.up, sam.step):
            sam.zero_grad()
            LOSS(gated(x), y).backward()
            then()

    for number in range(3):
        step(number)
    moments = {n: sam.inner.state[p]["exp_avg"].clone() for n, p in gated.host.named_parameters()}
    assert search.cut(third(gated))
    weights = dict(gated.host.named_parameters())
    assert [n for n, p in weights.items() if p not in sam.inner.state] == []
    assert [n for n, p in weights.items() if p not in sam.state] == []
    assert len(sam.inner.state) == len(sam.state) == len(weights)  # nothing of the former network is left
    for weight in weights.values():
        state = sam.inner.state[weight]
        assert int(state["step"]) == 3 and state["exp_avg"].shape == weight.shape
    kept = {axis[0]: gated.kept[gates] for axis, gates in gated.plan.axes.items()}
    name = "norm1.weight"
    assert torch.equal(sam.inner.state[weights[name]]["exp_avg"], moments[name][kept[name]])
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    step(3)
    assert all(not torch.equal(weight, before[name]) for name, weight in gated.host.named_parameters())
    assert all(int(state["step"]) == 4 for state in sam.inner.state.values())


def test_an_optimizer_with_lists_of_its_own_is_refused(tmp_path: Any) -> None:
    """Its weights would never move again after a cut, or would differ between processes."""
    gated = attached()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        zero = ZeroRedundancyOptimizer(gated.host.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
        with pytest.raises(InputError, match=r"ZeroRedundancyOptimizer\._all_params holds a weight of the network"):
            depl0.Search(gated, STEPS, optimizers=[zero])
        depl0.Search(gated, STEPS, optimizers=[zero], cut="never")
    finally:
        dist.destroy_process_group()


def test_accumulated_gradients_survive_a_cut() -> None:
    """``search.step()`` may be called before every micro batch."""
    gated = attached()
    sgd = torch.optim.SGD(gated.host.parameters(), lr=0.1)
    search = depl0.Search(gated, STEPS, optimizers=[sgd], cut="never")
    gone = third(gated)
    gated.remove(gone)
    x, y = batch(0)
    LOSS(gated(x), y).backward()
    before = {name: weight.grad.clone() for name, weight in gated.host.named_parameters()}
    shrunk = gated.cut()
    for entry in shrunk.moved:
        if isinstance(entry.before, nn.Parameter):
            assert torch.equal(entry.after.grad, entry.cut(entry.before.grad))
    assert float(gated.host.head.weight.grad.norm()) > 0
    assert gated.host.head.bias.grad.equal(before["head.bias"])
    assert search.done == 0


class Recorder:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen.append(output.shape[1])

    def with_name(self, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen.append(output.shape[1])


class Noting(Net):
    """Has a hook that is bound to the network itself."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = 0
        self.handle = None
        self.conv1.register_forward_hook(self.note)

    def note(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.noted = output.shape[1]


def test_hooks_go_on_after_a_cut_and_can_still_be_removed() -> None:
    torch.manual_seed(0)
    model = Noting()
    recorders = [Recorder() for _ in range(3)]
    gated = depl0.attach(model, torch.randn(1, 1, 6, 6), generator="independent")
    handles = [
        gated.host.conv1.register_forward_hook(recorders[0]),
        gated.host.conv1.register_forward_hook(functools.partial(recorders[1].with_name, "conv1")),
        gated.host.stem.register_forward_hook(lambda *_: recorders[2].seen.append(0), always_call=True),
    ]
    gated.remove(third(gated))
    gated.cut()
    left = gated.host.conv1.out_channels
    for recorder in recorders:
        recorder.seen.clear()  # both networks ran, to be compared
    gated(torch.randn(1, 1, 6, 6))
    assert left < 12 and [r.seen for r in recorders] == [[left], [left], [0]]
    assert gated.host.noted == left and model.noted != left  # bound to the network: now to the smaller one
    for handle in handles:
        handle.remove()
    gated(torch.randn(1, 1, 6, 6))
    assert [len(r.seen) for r in recorders] == [1, 1, 1]
    assert len(gated.host.conv1._forward_hooks) == 1 and not gated.host.stem._forward_hooks_always_called


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def slow_mean(averaged: Tensor, current: Tensor, _: object) -> Tensor:
    return 0.9999 * averaged + (1 - 0.9999) * current


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_mean_of_an_unchanged_network_is_that_network(use_buffers: bool) -> None:
    x = torch.randn(4, 1, 8, 8)
    gated = depl0.attach(network(), x)
    gated.fix_gates(torch.rand(gated.plan.num_gates))
    average = AveragedModel(gated, avg_fn=slow_mean, use_buffers=use_buffers)
    for _ in range(5):  # 0.9999 * 11 + 0.0001 * 11 is a little less than 11, and as an index it would be 10
        average.update_parameters(gated)
    gated.eval(), average.eval()
    torch.testing.assert_close(average(x), gated(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_mean_follows_a_network_that_has_lost_channels(use_buffers: bool) -> None:
    x = torch.randn(4, 1, 8, 8)
    gated = depl0.attach(network(), x, budget=0.5)
    average = AveragedModel(gated, use_buffers=use_buffers)  # the plain mean subtracts, which truth values refuse
    search = depl0.Search(gated, steps=10, averages=[average], cut="never")
    search.step()
    average.update_parameters(gated)
    search.cut(torch.arange(gated.plan.num_gates) % 2 == 0)
    average.update_parameters(gated)
    assert average.module.host[3].weight.shape == gated.host[3].weight.shape == (8, 4, 3, 3)
