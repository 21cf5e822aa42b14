"""The search in two processes of a loop of one's own: both decide alike, and both end in the same network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import depl0
from tests.pruning.test_search import Net, batch

STEPS = 20


def train(rank: int, port: int, folder: str, cut: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    gated = depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.4, rng=torch.Generator().manual_seed(0)).train()
    sgd = torch.optim.SGD(gated.weight_parameters(), lr=0.05, momentum=0.9)
    adam = torch.optim.Adam(gated.gate_parameters(), lr=depl0.gate_learning_rate(gated, STEPS))
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
        Path(folder, "result").write_text(f"{torch.equal(*both)} {left <= 0.4} {cuts > 0}")
    dist.destroy_process_group()


@pytest.mark.parametrize(("cut", "has_cut"), [("progressive", True), ("auto", False)])
def test_two_processes_agree(tmp_path: Path, cut: str, has_cut: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train, args=(port, str(tmp_path), cut), nprocs=2)
    assert (tmp_path / "result").read_text() == f"True True {has_cut}"
