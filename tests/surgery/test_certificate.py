"""The certificate: what is wrong is never returned."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping

import pytest
import torch
from tests.networks.blocks import AttentiveDetector
from tests.networks.structures import STRUCTURES, NoNorm, NormAfterConv, image
from tests.support.compare import liven, pruned, random_gates
from torch import Tensor, nn

import depl0
from depl0.equivalence import certificate
from depl0.equivalence.comparison import Comparison, max_error
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
def test_wrong_slices_are_caught_and_named(monkeypatch: pytest.MonkeyPatch, axis: tuple[str, int]) -> None:
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
    layer = axis[0].partition(".")[0]
    groups = {"two": "'-one', '-two'", "norm": "'-one'"}[layer]
    with pytest.raises(
        depl0.errors.CertificateError, match=rf"first at layer {layer}\. Nothing is returned.*\nhint: .*\[{groups}\]"
    ):
        gated.extract()
    assert all(torch.equal(value, before[name]) for name, value in host.state_dict().items())


@pytest.mark.parametrize("build", [NormAfterConv, AttentiveDetector])
def test_groups_that_a_hint_names_can_be_left_out(build: type[nn.Module]) -> None:
    """Whatever layer is found at fault, ``groups=`` takes what the hint says."""
    torch.manual_seed(0)
    network, example = build(), torch.randn(2, 3, 8, 8)
    plan = depl0.plan(network, example)
    hints = set()
    for layer in {name.rpartition(".")[0] for name, _ in plan.axes}:
        error = certificate._difference(Comparison((), (1.0,), 0.0), layer, "", plan)
        hints.update(re.findall(r"groups=(\[.*\])", str(error.hint)))
    assert hints
    for hint in sorted(hints)[:2]:
        try:
            names = {group.name for group in depl0.plan(network, example, groups=literal_eval(hint)).groups}
        except depl0.errors.NothingToPruneError:
            names = set()
        assert not names & {name[1:] for name in literal_eval(hint)}


def test_a_compact_network_that_does_not_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(model: nn.Module, positions: Mapping[tuple[str, int], Tensor]) -> None:
        slice_module(model, {axis: keep for axis, keep in positions.items() if axis != ("two.weight", 1)})

    gated = depl0.attach(NoNorm(), image()).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates, 1))
    monkeypatch.setattr(counting, "slice_module", half)
    with pytest.raises(depl0.errors.CertificateError, match=r"does not run \(RuntimeError: .*first at layer two"):
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
