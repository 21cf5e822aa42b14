"""Values that an example does not hold: tokens, masks, timesteps and images are drawn, and the certificate says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import NoNorm, TwoConvs, image
from tests.support.compare import call, distance, pruned
from torch import Tensor, nn

import depl0
from depl0.equivalence.cases import accepted_cases
from depl0.host.inputs import ExampleInputs

pytestmark = pytest.mark.structures


class OneHead(nn.Module):
    """Attention without positions, scaled by the number of channels: on equal tokens the scale makes no difference."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q, self.k = nn.Embedding(50, 12), nn.Linear(12, 8), nn.Linear(12, 8)
        self.v, self.head = nn.Linear(12, 8), nn.Linear(8, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens.view(len(tokens), -1))
        q, k, v = 3 * self.q(x), 3 * self.k(x), self.v(x)
        return self.head((q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v)


class FilledByMask(nn.Module):
    """A closed channel is 1, not 0, where the mask is False."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        x = self.two(x + (~mask.bool())[..., None].to(x.dtype) / x.shape[-1])
        return self.three(F.relu(x))


class Timestep(TwoConvs):
    """Late timesteps are scaled by the number of channels."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        late = (t >= 500).to(x.dtype).view(-1, 1, 1, 1)
        x = x * (1 + late * (x.shape[1] - 1))
        return self.head(F.relu(self.two(x)).mean((2, 3)))


class Pixels(NoNorm):
    """Only values that images of bytes have are scaled by the number of channels."""

    def features(self, x: Tensor) -> Tensor:
        large = (x.amax((1, 2, 3), keepdim=True) > 100).to(x.dtype)
        x = F.relu(self.one(x))
        return F.relu(self.two(x * (1 + large * (x.shape[1] - 1))))


def tokens(*shape: int, high: int = 50) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(3))


SEQUENCE = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
HOSTS: dict[str, tuple[type[nn.Module], Any, Any]] = {
    "tokens": (OneHead, torch.zeros(1, 8, dtype=torch.long), tokens(2, 8)),
    "a boolean mask": (FilledByMask, (SEQUENCE, torch.ones(1, 5).bool()), (SEQUENCE, torch.zeros(1, 5).bool())),
    "a timestep": (Timestep, (image(), torch.tensor([10, 20])), (image(), torch.tensor([900, 10]))),
    "pixels": (Pixels, image(), 255 * image().abs()),
}


@pytest.mark.parametrize("name", HOSTS)
def test_values_that_the_example_does_not_hold(name: str) -> None:
    build, example, other = HOSTS[name]
    torch.manual_seed(0)
    gated, compact = pruned(build(), example, seed=1)
    assert distance(call(gated, other), call(compact, other)) < 1e-5
    assert distance(call(gated, example), call(compact, example)) < 1e-5


def test_the_certificate_says_what_was_drawn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = {"x": SEQUENCE, "mask": torch.ones(1, 5).bool()}
    _, compact = pruned(FilledByMask(), inputs)
    drawn = ("x: normal, and 0 to 255", "mask: both values")
    assert depl0.info(compact).certificate.drawn == drawn
    assert "  drawn        x: normal, and 0 to 255; mask: both values\n" in f"{depl0.info(compact)}\n"
    loaded = depl0.load(depl0.save(compact, tmp_path), FilledByMask)
    assert depl0.info(loaded).certificate == depl0.info(compact).certificate

    _, compact = pruned(OneHead(), tokens(1, 8))
    assert depl0.info(compact).certificate.drawn == ("input 1: 0 to 49",)
    _, compact = pruned(Timestep(), (image(), torch.tensor([10, 20])))
    assert depl0.info(compact).certificate.drawn == ("input 1: normal, and 0 to 255", "input 2: 0 to 999")


def test_a_network_that_takes_nothing_but_the_example_says_so() -> None:
    host = NoNorm()

    def run(inputs: ExampleInputs) -> Any:
        if not torch.equal(inputs.args[0], image()):
            raise ValueError("not that one")
        return inputs.call(host)

    found = accepted_cases(run, ExampleInputs.of(image()), ())
    assert found.covered == ("the example",) and found.drawn == ()
    assert found.refused == ("another batch", "another size", "other values than the example's")
