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

import depl0

pytestmark = pytest.mark.processes


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
