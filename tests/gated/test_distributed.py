"""Two processes over gloo: gradients are averaged, and both take the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.networks.structures import Residual
from tests.support.forkserver import ForkServer, ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import depl0

pytestmark = pytest.mark.processes


def train_one_step(rank: int, folder: Path) -> int:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(4, 3, 8, 8)
    gated = depl0.attach(Residual(), inputs)
    model = DistributedDataParallel(gated)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)  # other data and other gates in each process
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 8, 8)).square().sum() + 1e-5 * model.module.penalty("macs", scale="count")
        loss.backward()
        optimizer.step()
    vectors = [
        torch.cat([p.detach().flatten() for p in ps]) for ps in (gated.weight_parameters(), gated.gate_parameters())
    ]
    gathered = [[torch.zeros_like(v) for _ in range(2)] for v in vectors]
    for vector, both in zip(vectors, gathered, strict=True):
        dist.all_gather(both, vector)
    losses = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(losses, loss.detach())
    if rank == 0:
        same = all(torch.equal(a, b) for a, b in gathered)
        (folder / "result").write_text(f"{same} {not torch.equal(*losses)}")
    dist.barrier()
    return 0


def test_gated_model_trains_under_ddp(server: ForkServer, tmp_path: Path) -> None:
    codes, said = ranks(server, tmp_path, "tests.gated.test_distributed:train_one_step")
    assert codes == [0, 0], said
    assert (tmp_path / "result").read_text() == "True True"


def shard(rank: int, folder: Path) -> int:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh, inputs, said = init_device_mesh("cpu", (2,)), torch.randn(2, 3, 8, 8), []

    def note(call: Callable[..., object], *args: Any) -> None:
        with pytest.raises(depl0.errors.InputError) as refused:
            call(*args)
        said.append(str(refused.value).splitlines()[0])

    note(depl0.attach, fully_shard(Residual(), mesh=mesh), inputs)
    gated = depl0.attach(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), inputs)
    search = depl0.Search(gated, 4, optimizers=[torch.optim.AdamW(gated.parameter_groups(lr=1e-3, steps=4))])
    for layer in (gated.host[0], gated.host[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(gated, mesh=mesh)
    note(search.step)
    note(gated, inputs)
    if rank == 0:
        (folder / "result").write_text("\n".join(said))
    dist.barrier()
    return 0


def test_sharded_networks_are_refused_in_words(server: ForkServer, tmp_path: Path) -> None:
    codes, said = ranks(server, tmp_path, "tests.gated.test_distributed:shard")
    assert codes == [0, 0], said
    message = "the network is sharded (its parameters are DTensors); gates and cuts need whole parameters."
    assert (tmp_path / "result").read_text().splitlines() == [message] * 3
