"""The search in several processes of a loop of one's own: DDP follows every cut, and one process does the same."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

import depl0
from tests.networks.loops import Net, batch
from tests.support.forkserver import ForkServer, ranks

pytestmark = pytest.mark.processes

STEPS = 40
LOSS = nn.functional.cross_entropy


class Plain(nn.Module):
    """No batch norm, so that a batch may be split."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.last, self.head = nn.Conv2d(16, 16, 3), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.middle(torch.relu(self.stem(x))))
        return self.head(torch.relu(self.last(x)).mean((2, 3)))


class Holder(nn.Module):
    """A module around the gated network, as trainers have it."""

    def __init__(self, gated: nn.Module) -> None:
        super().__init__()
        self.gated, self.scale = gated, nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.gated(x) * self.scale


def search_all(
    split: slice, wrap: Any, warmup: float = 0.0, accumulate: int = 1, steps: int = STEPS
) -> tuple[list[float], list[int], nn.Module]:
    """Train in float64 with the gates of one process; return losses, the steps of the cuts, and the compact network."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"budget": 0.15, "rng": torch.Generator().manual_seed(0)}
    gated = depl0.attach(Plain(), torch.randn(1, 1, 6, 6), **options).double().train()
    model = wrap(gated)
    weights, gates = gated.parameter_groups(lr=0.05, steps=steps)
    weights["params"] = [*weights["params"], *(p for name, p in model.named_parameters() if name.endswith("scale"))]
    sgd, adam = torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([gates])
    search = depl0.Search(gated, steps, optimizers=[sgd], warmup=warmup)
    losses, cuts = [], []
    for step in range(steps):
        torch.manual_seed(step)  # all processes draw the gates that one process draws
        if search.step():
            cuts.append(step)
        x, y = batch(step)
        x, y = x.double()[split], y[split]
        for number, (part, target) in enumerate(zip(x.chunk(accumulate), y.chunk(accumulate), strict=True), 1):
            last = number == accumulate or not hasattr(model, "no_sync")
            with contextlib.nullcontext() if last else model.no_sync():
                loss = LOSS(model(part), target) / accumulate
                loss.backward()
        losses.append(float(loss.detach()))
        for optimizer in (sgd, adam):
            optimizer.step()
            optimizer.zero_grad()
    return losses, cuts, search.finish()


def values(network: nn.Module) -> Tensor:
    return torch.cat([value.flatten().double() for value in network.state_dict().values()])


def same_as_one(rank: int, folder: Path, held: bool, **options: Any) -> int:
    dist.init_process_group("gloo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap = (lambda gated: DistributedDataParallel(Holder(gated))) if held else DistributedDataParallel
        _, cuts, compact = search_all(slice(rank, None, dist.get_world_size()), wrap, **options)
    if rank == 0:
        torch.distributed.destroy_process_group()
        _, alone_cuts, alone = search_all(slice(None), Holder if held else (lambda gated: gated), **options)
        error = float((values(compact) - values(alone)).abs().max())
        (folder / "result").write_text(f"{cuts == alone_cuts} {len(cuts)} {error}")
    return 0


@pytest.mark.parametrize(("held", "options"), [(False, {}), (True, {"warmup": 0.2, "accumulate": 2})])
def test_ddp_follows_the_cuts_and_equals_one_process(
    server: ForkServer, tmp_path: Path, held: bool, options: dict[str, Any]
) -> None:
    what = "tests.search.test_search_distributed:same_as_one"
    codes, said = ranks(server, tmp_path, what, held=held, **options)
    assert codes == [0, 0], said
    same_cuts, cuts, error = (tmp_path / "result").read_text().split()
    assert same_cuts == "True" and int(cuts) >= 3
    assert float(error) < 1e-6


def same_in_all(state: Any) -> bool:
    leaves = [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, (Tensor, int, float))]
    own = torch.cat([torch.as_tensor(leaf).flatten().double() for leaf in leaves])
    both = [torch.zeros_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    return torch.equal(*both)


def train(rank: int, folder: Path, cut: Any, wrapped: bool, fit: bool) -> int:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    gated = depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.4, rng=torch.Generator().manual_seed(0)).train()
    weights, gates = gated.parameter_groups(lr=0.05, steps=20)
    sgd, adam = torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([gates])
    own = [batch(100 * rank + number) for number in range(3)]  # other data in each process
    search = depl0.Search(gated, 20, optimizers=[sgd], calibrate=own, loss=LOSS, cut=cut, compensate=fit)
    torch.manual_seed(rank)  # other gates in each process
    model, cuts = DistributedDataParallel(gated) if wrapped else gated, 0
    for step in range(20):
        cuts += search.step()
        x, y = batch(1000 * (rank + 1) + step)
        LOSS(model(x), y).backward()
        for parameter in () if wrapped else gated.parameters():
            dist.all_reduce(parameter.grad)
        for optimizer in (sgd, adam):
            optimizer.step()
            optimizer.zero_grad()
    compact = search.finish()
    remembered = {name: optimizer.state_dict()["state"] for name, optimizer in {"sgd": sgd, "adam": adam}.items()}
    states = {"compact": compact.state_dict(), "gated": gated.state_dict(), **remembered, "search": search.state_dict()}
    differing = [name for name, state in states.items() if not same_in_all(state)]
    if rank == 0:
        (folder / "result").write_text(f"{differing} {cuts > 0}")
    dist.barrier()
    return 0


@pytest.mark.parametrize(
    ("cut", "wrapped", "fit", "has_cut"), [("auto", False, False, False), ("progressive", True, True, True)]
)
def test_two_processes_with_other_data_agree(
    server: ForkServer, tmp_path: Path, cut: str, wrapped: bool, fit: bool, has_cut: bool
) -> None:
    what = "tests.search.test_search_distributed:train"
    codes, said = ranks(server, tmp_path, what, cut=cut, wrapped=wrapped, fit=fit)
    assert codes == [0, 0], said
    assert (tmp_path / "result").read_text() == f"[] {has_cut}"
