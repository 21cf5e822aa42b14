"""Parts by number, attention, recurrent layers: pruned exactly, shrunk, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import depl0
from tests.networks.structures import Classifier, conv, image
from tests.support.compare import call, distance, liven, random_gates, same_cost

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any, float, dict[str, int]]] = {}


def network(least: float, groups: dict[str, int], inputs: Any = None) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a network, the least MACs that can be reached, and its groups."""

    def add(cls: type[nn.Module]) -> type[nn.Module]:
        NETWORKS[cls.__name__] = (cls, image() if inputs is None else inputs, least, groups)
        return cls

    return add


# -- parts by number -------------------------------------------------------------------------------------------------


@network(0.12, {"one": 12, "two": 6})
class UnequalSplit(Classifier):
    """As in InceptionNeXt and MambaOut: the sizes of the parts are a tuple; each may lose what it likes."""

    def __init__(self) -> None:
        super().__init__(6)
        self.sizes = (7, 2, 3)
        self.one, self.two = conv(3, 12), conv(12, 6)

    def features(self, x: Tensor) -> Tensor:
        a, b, c = torch.split(self.one(x), self.sizes, dim=1)
        return F.relu(self.two(torch.cat([a, F.relu(b), F.max_pool2d(c, 3, 1, 1)], 1)))


@network(0.15, {"one": 3, "two": 6})
class SliceByShare(Classifier):
    """As in temporal shifts: a quarter of the channels is treated otherwise."""

    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two = conv(3, 12), conv(12, 6)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        fold = x.shape[1] // 4
        return F.relu(self.two(torch.cat([x[:, :fold].roll(1, 2), x.narrow(1, fold, fold), x[:, 2 * fold :]], 1)))


@network(0.45, {"two": 6})
class NumberOfSomethingElse(Classifier):
    """The attribute has the right value and is on the line, but also scales the outputs: it cannot follow."""

    def __init__(self) -> None:
        super().__init__(6)
        self.part = 3
        self.one, self.two = conv(3, 9), conv(9, 6)

    def features(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.one(x)).split([self.part, 6], 1)
        return F.relu(self.two(torch.cat([b, a], 1) / self.part))


# -- attention -------------------------------------------------------------------------------------------------------

TOKENS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


@network(0.3, {"key": 4, "fc": 12}, TOKENS)
class SizesByAttribute(nn.Module):
    """As in Hugging Face's YOLOS and VideoMAE: numbers that the module keeps say how heads are cut up and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.head_size, self.all_heads = 4, 4, 16
        self.query, self.key, self.value = (nn.Linear(8, 16) for _ in range(3))
        self.out, self.fc, self.head = nn.Linear(16, 8), nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        shape = len(x), -1, self.heads, self.head_size
        key = self.key(x).view(*shape).transpose(1, 2)
        value = self.value(x).view(*shape).transpose(1, 2)
        query = self.query(x).view(*shape).transpose(1, 2)
        y = F.scaled_dot_product_attention(query, key, value, scale=0.5).transpose(1, 2)
        y = y.reshape((*y.shape[:-2], self.all_heads))
        return self.head(F.relu(self.fc(x + self.out(y)))).mean(1)


ATTENTION = "encoder.layers.0.self_attn.in_proj_weight"


@network(0.07, {"first": 8, ATTENTION: 4, f"{ATTENTION}.values": 4, "encoder.layers.0.linear1": 12}, (TOKENS, PADDED))
class PaddedEncoder(nn.Module):
    """Attention of torch with a mask, in an encoder that packs padded batches for its fused layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.first, self.encoder, self.head = nn.Linear(8, 8), nn.TransformerEncoder(layers, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        x = self.encoder(self.first(x), src_key_padding_mask=padded)
        return self.head(x.masked_fill(padded[..., None], 0).mean(1))


# -- recurrent layers ------------------------------------------------------------------------------------------------


@network(0.1, {"one": 8, "two": 10, "lstm": 3, "gru": 4})
class Recurrent(nn.Module):
    """Sequences of maps, read both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = conv(3, 8), conv(8, 10)
        self.lstm = nn.LSTM(10, 3, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4, num_layers=2)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.two(F.relu(self.one(x)))).mean(2).transpose(1, 2)
        return self.head(torch.cat([self.lstm(x)[0][:, -1], self.gru(x.transpose(0, 1))[0][-1]], 1))


def built(name: str) -> tuple[nn.Module, Any]:
    cls, inputs, _, _ = NETWORKS[name]
    torch.manual_seed(0)
    return liven(cls(), inputs), inputs


@pytest.mark.parametrize("name", NETWORKS)
def test_pruned_shrunk_saved_and_loaded(name: str, tmp_path: Path) -> None:
    host, inputs = built(name)
    _, _, least, groups = NETWORKS[name]
    gated = depl0.attach(host, inputs, generator="independent").eval()
    plan = gated.plan
    assert {group.name: group.size for group in plan.groups} == groups
    assert plan.least() <= least
    gates = random_gates(plan.num_gates, seed=1)
    gates[:: len(gates) // 2] = 0
    gated.fix_gates(gates)
    compact = gated.extract().eval()
    assert depl0.info(compact).certificate.max_error < 1e-7
    assert distance(call(gated, inputs), call(compact, inputs)) < 1e-5
    assert same_cost(gated.kept_cost(), depl0.cost(compact, inputs))
    assert depl0.cost(compact, inputs).macs < gated.dense_cost.macs

    depl0.save(compact, tmp_path)
    loaded = depl0.load(tmp_path, lambda: built(name)[0]).eval()
    assert distance(call(compact, inputs), call(loaded, inputs)) == 0

    before = call(gated, inputs)
    gated.remove(gated.evaluation_gates() == 0)
    assert gated.cut().positions
    assert distance(before, call(gated, inputs)) < 1e-5


def test_attributes_follow_the_channels() -> None:
    host, inputs = built("UnequalSplit")
    gated = depl0.attach(host, inputs, generator="independent").eval()
    gated.fix_gates(torch.tensor([1.0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 0] + [1.0] * 6))
    compact = gated.extract()
    assert compact.sizes == (5, 1, 1) and host.sizes == (7, 2, 3)
    again = depl0.attach(compact, inputs, generator="independent").eval()
    again.fix_gates(torch.tensor([1.0, 0, 1, 1, 1] + [1.0] * 6))
    assert again.extract().sizes == (4, 1, 1)  # a part of one channel keeps it


def test_lstms_are_counted() -> None:
    cost = depl0.cost(nn.LSTM(6, 5, batch_first=True), torch.zeros(3, 4, 6))
    assert cost.macs == 4 * 20 * (6 + 5)  # of one example: four steps, four gates of five units
