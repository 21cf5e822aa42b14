"""The certificate: what is wrong is never returned, and values that an example does not hold are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.structures import STRUCTURES, NoNorm, NormAfterConv, TwoConvs, image
from tests.support.compare import call, distance, liven, pruned, random_gates
from torch import Tensor, nn

import depl0
from depl0.equivalence.cases import accepted_cases
from depl0.equivalence.comparison import max_error
from depl0.host.inputs import ExampleInputs
from depl0.surgery import slicing as counting
from depl0.surgery.record import record_of
from depl0.surgery.slicing import slice_module

pytestmark = pytest.mark.structures


def test_certificate_is_kept_with_the_network() -> None:
    _, compact = pruned(NormAfterConv(), image())
    record = record_of(compact)
    assert record is not None and record.certificate.dtype == "float64"
    assert record.certificate.max_error < 1e-7 and record.certificate.inputs == 3
    assert record.certificate.covered == ("the example", "batch of 4, size 9x11", "batch of 1", "training mode")


@pytest.mark.parametrize("axis", [("two.weight", 1), ("norm.running_mean", 0)])
def test_wrong_slices_are_caught(monkeypatch: pytest.MonkeyPatch, axis: tuple[str, int]) -> None:
    def wrong(model: nn.Module, positions: Mapping[tuple[str, int], Tensor]) -> None:
        size = dict(model.state_dict())[axis[0]].shape[axis[1]]
        shifted = (positions[axis] + 1) % size
        slice_module(model, {**positions, axis: shifted})

    torch.manual_seed(0)
    host = liven(NormAfterConv(), image())
    before = {name: value.clone() for name, value in host.state_dict().items()}
    gated = depl0.attach(host, image()).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates, 1))
    monkeypatch.setattr(counting, "slice_module", wrong)
    with pytest.raises(
        depl0.errors.CertificateError, match=r"differs from .*Nothing is returned.*\nhint: .*\['-one'\]"
    ):
        gated.extract()
    assert all(torch.equal(value, before[name]) for name, value in host.state_dict().items())


def test_a_compact_network_that_does_not_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(model: nn.Module, positions: Mapping[tuple[str, int], Tensor]) -> None:
        slice_module(model, {axis: keep for axis, keep in positions.items() if axis != ("two.weight", 1)})

    gated = depl0.attach(NoNorm(), image()).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates, 1))
    monkeypatch.setattr(counting, "slice_module", half)
    with pytest.raises(depl0.errors.CertificateError, match=r"does not run \(RuntimeError: .*at layer two"):
        gated.extract()


def test_nothing_but_nan_is_no_proof() -> None:
    host = NoNorm()
    gated = depl0.attach(host, image()).eval()
    with torch.no_grad():
        host.one.weight.fill_(float("nan"))
    with pytest.raises(depl0.errors.CertificateError, match="no finite output"):
        gated.extract()


def test_network_that_insists_on_float32_is_compared_in_float32() -> None:
    class Insists(NoNorm):
        def features(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise RuntimeError("float32, please")
            return super().features(x)

    _, compact = pruned(Insists(), image())
    assert record_of(compact).certificate.dtype == "float32"


def test_randomness_in_evaluation_is_named() -> None:
    class Noisy(NoNorm):
        def features(self, x: Tensor) -> Tensor:
            return super().features(x + torch.randn_like(x))

    refused = r"evaluation pass of Noisy gives other outputs each time.*\nhint: "
    with pytest.raises(depl0.errors.TraceError, match=refused):
        depl0.attach(Noisy(), image())


def test_error_is_relative_to_the_reaction_not_to_the_size() -> None:
    """A large bias in the last layer must not hide a wrong channel."""
    wanted = [torch.tensor([1e6]), torch.tensor([1e6 + 1.0])]
    found = [torch.tensor([1e6]), torch.tensor([1e6 + 1.5])]
    assert max_error(wanted, found, torch.float64) >= 0.4
    assert max_error(wanted, wanted, torch.float64) == 0
    assert max_error([(torch.ones(2), 3)], [(torch.ones(2), 4)], torch.float64) == float("inf")
    assert max_error([torch.ones(2)], [torch.ones(3)], torch.float64) == float("inf")
    assert max_error([torch.ones(2)], [[torch.ones(2)]], torch.float64) == float("inf")
    assert max_error([torch.ones(2)], [RuntimeError("does not run")], torch.float64) == float("inf")
    assert max_error([torch.ones(2)], [torch.full((2,), float("nan"))], torch.float64) == float("inf")


def test_all_closed_keeps_one_channel_and_is_exact() -> None:
    for name in ("SigmoidBetween", "Concat", "Grouped", "GatedLinearUnit"):
        structure = STRUCTURES[name]
        host = liven(structure.build(), structure.inputs)
        gated = depl0.attach(host, structure.inputs).eval()
        gated.fix_gates(torch.zeros(gated.plan.num_gates))
        compact = gated.extract().eval()
        assert torch.allclose(gated(structure.inputs), compact(structure.inputs), atol=1e-5)
        kept, counted = gated.kept_cost(), depl0.cost(compact, structure.inputs)
        assert (kept.params, kept.macs) == (counted.params, counted.macs)
        assert all(0 not in p.shape for p in compact.parameters())


def test_best_channel_of_a_closed_group_stays() -> None:
    gated = depl0.attach(NoNorm(), image(), generator="independent").eval()
    wanted = torch.full((gated.plan.num_gates,), -6.0)
    wanted[3] = -5.0
    gated.generator.start_from(wanted)
    record = record_of(gated.extract())
    assert record.positions["one.weight", 0].tolist() == [3]


# -- values that the example does not hold -----------------------------------------------------------------------------


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


def test_the_certificate_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    _, compact = pruned(FilledByMask(), {"x": SEQUENCE, "mask": torch.ones(1, 5).bool()})
    loaded = depl0.load(depl0.save(compact, tmp_path), FilledByMask)
    assert depl0.info(loaded).certificate == depl0.info(compact).certificate


def test_a_network_that_takes_nothing_but_the_example_says_so() -> None:
    host = NoNorm()

    def run(inputs: ExampleInputs) -> Any:
        if not torch.equal(inputs.args[0], image()):
            raise ValueError("not that one")
        return inputs.call(host)

    found = accepted_cases(run, ExampleInputs.of(image()), ())
    assert found.covered == ("the example",)
    assert found.refused == ("another batch", "another size", "other values than the example's")
