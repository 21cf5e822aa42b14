"""The search in two processes of a loop of one's own: both decide alike, and both end in the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import depl0
from tests.networks.loops import Net, batch
from tests.support.forkserver import ForkServer, ranks

pytestmark = pytest.mark.processes

STEPS = 20


def train(rank: int, folder: Path, cut: Any) -> int:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    gated = depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.4, rng=torch.Generator().manual_seed(0)).train()
    weights, gates = gated.parameter_groups(lr=0.05, steps=STEPS)
    sgd, adam = torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([gates])
    own = [batch(100 * rank + number) for number in range(3)]  # other data in each process
    loss = nn.functional.cross_entropy
    search = depl0.Search(gated, STEPS, optimizers=[sgd], calibrate=own, loss=loss, cut=cut)
    torch.manual_seed(rank)  # other gates in each process
    model, cuts = DistributedDataParallel(gated), 0
    for step in range(STEPS):
        if search.step():
            model, cuts = DistributedDataParallel(gated), cuts + 1
        x, y = batch(1000 * (rank + 1) + step)
        loss(model(x), y).backward()
        for optimizer in (sgd, adam):
            optimizer.step()
            optimizer.zero_grad()
    compact = search.finish()
    state = torch.cat([value.flatten().double() for value in compact.state_dict().values()])
    both = [torch.zeros_like(state) for _ in range(2)]
    dist.all_gather(both, state)
    if rank == 0:
        left = depl0.info(compact).macs_left
        (folder / "result").write_text(f"{torch.equal(*both)} {left <= 0.4} {cuts > 0}")
    dist.barrier()
    return 0


@pytest.mark.parametrize(("cut", "has_cut"), [("progressive", True), ("auto", False)])
def test_two_processes_agree(server: ForkServer, tmp_path: Path, cut: str, has_cut: bool) -> None:
    codes, said = ranks(server, tmp_path, "tests.search.test_search_distributed:train", cut=cut)
    assert codes == [0, 0], said
    assert (tmp_path / "result").read_text() == f"True True {has_cut}"
