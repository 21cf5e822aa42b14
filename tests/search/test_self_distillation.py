"""Recovery without labels, agreement with the dense network, and several budgets from one look."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.errors import InputError
from depl0.search import progress
from depl0.search.calibration import hold_out
from depl0.search.recovery import self_distillation
from depl0.search.recovery.distillation import block_outputs, kept_channels
from depl0.search.recovery.outputs import compare_by, measure_agreement
from tests.networks.loops import BATCHES, Net, batch, trained_net

pytestmark = pytest.mark.usefixtures("remembered_plans")

INPUTS = [images for images, _ in BATCHES]
EXAMPLE = torch.randn(1, 1, 6, 6)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return trained_net()


def unequal(a: nn.Module, b: nn.Module) -> list[str]:
    theirs = b.state_dict()
    return [name for name, value in a.state_dict().items() if not torch.equal(value, theirs[name])]


def divergence(network: nn.Module, dense: nn.Module) -> float:
    """On inputs that nobody has seen."""
    batches = [batch(n)[0] for n in range(6000, 6010)]
    found = measure_agreement(network, dense, batches, compare_by(dense, batches[0], 1))
    assert found is not None and found.kl is not None
    return found.kl


def test_recovery_brings_the_answers_closer_and_touches_nothing_of_the_caller(trained: nn.Module) -> None:
    before, rng = copy.deepcopy(trained), torch.get_rng_state()
    cut = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.2, recover=None)
    recovered = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.2)
    assert unequal(trained, before) == [] and not trained.training
    assert all(a.training == b.training for a, b in zip(trained.modules(), before.modules(), strict=True))
    assert all(p.requires_grad for p in trained.parameters())
    assert torch.equal(torch.get_rng_state(), rng)
    assert divergence(recovered, trained) < 0.7 * divergence(cut, trained)
    assert not recovered.training and type(recovered) is Net
    again = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.2)
    assert unequal(recovered, again) == [], "the same call gives the same network"


def test_agreement_is_told_and_kept_in_files(trained: nn.Module, tmp_path: Path) -> None:
    compact = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.5, recover=None)
    found = depl0.info(compact).agreement
    assert found is not None and found.equal is not None and found.kl is not None
    held_back = [images[::8] for images in INPUTS]
    with torch.no_grad():
        equal = [float(x) for i in held_back for x in compact(i).argmax(1) == trained(i).argmax(1)]
    assert found.inputs == len(equal) and found.equal == pytest.approx(sum(equal) / len(equal))
    assert f"agreement    {found.equal:.1%} equal answers" in str(depl0.info(compact))
    loaded = depl0.load(depl0.save(compact, tmp_path), Net)
    assert depl0.info(loaded).agreement == found
    whole = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=1.0)
    assert depl0.info(whole).agreement.equal == 1.0  # type: ignore[union-attr]


def test_nothing_is_fitted_to_what_is_held_back(trained: nn.Module) -> None:
    changed = [images.clone() for images in INPUTS]
    for images in changed:
        images[::8] *= 50
    options: Any = {"budget": 0.5, "recover": 3}
    one, other = (depl0.prune(trained, EXAMPLE, data=data, **options) for data in (INPUTS, changed))
    cut = depl0.prune(trained, EXAMPLE, data=changed, budget=0.5, recover=None)
    kept = [unequal(one, other), unequal(one, cut), unequal(other, cut)]
    assert [] in kept, "they only decide which weights stay"
    assert unequal(cut, depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.5, recover=None)) == []


def test_every_budget_on_the_way_from_the_largest(trained: nn.Module, tmp_path: Path) -> None:
    budgets, ready = [0.75, 0.25, 0.5], []
    options: Any = {"data": INPUTS, "recover": 5}
    found = depl0.prune(trained, EXAMPLE, budget=budgets, on_ready=ready.append, **options)
    assert [id(network) for network in ready] == [id(found[0]), id(found[2]), id(found[1])]
    for budget, network in zip(budgets, found, strict=True):
        assert budget - 0.1 < depl0.info(network).macs_left <= budget
    alone = depl0.prune(trained, EXAMPLE, budget=0.75, **options)
    assert unequal(found[0], alone) == [] and str(depl0.info(found[0])) == str(depl0.info(alone))
    assert all(a is not b for a in found[0].parameters() for b in found[2].parameters())
    with pytest.raises(InputError, match="is infeasible"):
        depl0.prune(trained, EXAMPLE, budget=[0.5, 0.001], **options)
    with pytest.raises(InputError, match="a share or several, got none"):
        depl0.prune(trained, EXAMPLE, budget=[], **options)
    with pytest.raises(InputError, match="budget must be a number or a list of numbers, got '50%'"):
        depl0.prune(trained, EXAMPLE, budget="50%", **options)


def test_a_crash_loses_only_the_network_in_work(trained: nn.Module, tmp_path: Path) -> None:
    def save_or_fail(network: nn.Module) -> None:
        if (tmp_path / "0").exists():
            raise MemoryError
        depl0.save(network, tmp_path / "0")

    with pytest.raises(MemoryError):
        depl0.prune(trained, EXAMPLE, data=INPUTS, budget=[0.3, 0.6], recover=None, on_ready=save_or_fail)
    assert 0.5 < depl0.info(depl0.load(tmp_path / "0", Net)).macs_left <= 0.6


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.blocks = nn.Sequential(*(Branch() for _ in range(3)))
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).relu().mean((2, 3)))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.out = nn.Conv2d(24, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.norm(self.inner(x)).relu())


def test_kept_channels_of_a_residual_stream_are_compared() -> None:
    torch.manual_seed(0)
    network, inputs = Residual().eval(), torch.randn(32, 1, 8, 8)
    gated = depl0.attach(copy.deepcopy(network), inputs[:1], generator="independent")
    gates = torch.ones(gated.plan.num_gates)
    stream = next(group for group in gated.plan.groups if group.size == 24)
    gates[stream.offset + 1 : stream.offset + 20 : 3] = 0
    gated.fix_gates(gates)
    pruned = gated.extract()
    kept = kept_channels(gated, pruned, inputs)
    assert set(kept) == {f"blocks.{n}" for n in range(3)}
    assert all(
        axis == 1 and places.tolist() == gates[stream.gates].nonzero().flatten().tolist()
        for axis, places in kept.values()
    )
    options: Any = {"steps": 40, "lr": 1e-2}
    errors = {}
    for name, channels in (("with", kept), ("without", None)):
        own = copy.deepcopy(pruned)
        self_distillation.distill(own, copy.deepcopy(network), [inputs], [inputs], kept=channels, **options)
        with torch.no_grad(), block_outputs(own, kept) as found, block_outputs(network, kept) as wanted:
            own(inputs), network(inputs)
        errors[name] = sum(float((found[n] - wanted[n][:, places]).square().mean()) for n, (_, places) in kept.items())
    assert errors["with"] < 0.8 * errors["without"]


class Funnel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(1, 40, 1), nn.Conv2d(40, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.wide(x).relu())


def test_kept_inputs_of_a_layer_are_not_taken_for_kept_outputs() -> None:
    """Both are 10 channels, but the inputs have higher numbers than there are outputs."""
    torch.manual_seed(0)
    inputs = torch.randn(4, 1, 4, 4)
    gated = depl0.attach(nn.Sequential(Funnel(), nn.ReLU(), nn.Conv2d(24, 3, 1)).eval(), inputs[:1])
    gates = torch.zeros(gated.plan.num_gates)
    for group in gated.plan.groups:
        gates[group.offset + group.size - 10 : group.offset + group.size] = 1
    gated.fix_gates(gates)
    ((axis, places),) = kept_channels(gated, gated.extract(), inputs).values()
    assert axis == 1 and places.tolist() == list(range(14, 24))


def test_interrupted_recovery_gives_back_the_best_so_far(trained: nn.Module) -> None:
    steps = 0

    def augment(images: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == 50:
            raise KeyboardInterrupt
        return images

    cut = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.2, recover=None)
    found = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=[0.2, 0.5], recover=200, augment=augment)
    assert len(found) == 1 and steps == 50
    assert divergence(found[0], trained) < divergence(cut, trained)


def test_outputs_that_are_not_numbers_raise_an_error(trained: nn.Module) -> None:
    broken = copy.deepcopy(trained)
    next(broken.parameters()).data.fill_(torch.nan)
    with pytest.raises(InputError, match="contain NaN or infinite values"):
        measure_agreement(broken, trained, INPUTS[:1], compare_by(trained, INPUTS[0], 1))


@pytest.mark.parametrize(("size", "kept"), [(16, True), (32, False)])
def test_small_batches_do_not_change_the_statistics_of_norms(size: int, kept: bool) -> None:
    """Images of ImageNet are recovered in small batches, to bound memory."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)).eval()
    original, inputs = copy.deepcopy(network), [torch.randn(size, 1, 6, 6) for _ in range(4)]
    with torch.no_grad():
        network[3].weight.mul_(0.5)
    self_distillation.distill(network, original, inputs[1:], inputs[:1], steps=20)
    assert torch.equal(network[1].running_mean, original[1].running_mean) == kept


def test_auto_stops_when_it_no_longer_pays(trained: nn.Module) -> None:
    cut = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.4, recover=None)
    inputs, held_back = hold_out(INPUTS)
    options: Any = {"lr": 100.0}  # every step makes it worse
    worse = copy.deepcopy(cut)
    done = self_distillation.distill(worse, copy.deepcopy(trained), inputs, held_back, **options)
    assert done.steps <= self_distillation.PATIENCE and done.after == done.before
    assert unequal(worse, cut) == [], "never worse than the cut"
    same = self_distillation.distill(copy.deepcopy(trained), copy.deepcopy(trained), inputs, held_back)
    assert same.steps == 0, "nothing was lost"


class Tokens(nn.Module):
    """Words to the scores of the next ones, beside something that is not a score."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(11, 16), nn.Linear(16, 24), nn.Linear(24, 11)

    def forward(self, words: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        inner = torch.relu(self.inner(self.embed(words)))
        return {"logits": 5 * scale * self.head(inner), "length": torch.tensor(words.shape[1])}


@pytest.mark.parametrize(("class_axis", "has_classes"), [("auto", True), (None, False), (-1, True)])
def test_any_output_can_be_recovered(class_axis: Any, has_classes: bool) -> None:
    torch.manual_seed(0)
    network = Tokens()
    data = [{"words": torch.randint(0, 11, (16, 7)), "scale": 1.0} for _ in range(3)]
    cut, compact = (
        depl0.prune(network, data[0], data=data, budget=0.5, recover=steps, class_axis=class_axis)
        for steps in (None, 40)
    )
    before, after = depl0.info(cut).agreement, depl0.info(compact).agreement
    assert before is not None and after is not None and before.inputs == 6
    assert after.error < before.error and (after.equal is not None) is has_classes
    assert not has_classes or after.kl < before.kl  # type: ignore[operator]


def test_scores_of_tokens_are_compared_by_their_divergence_alone() -> None:
    torch.manual_seed(0)
    network, words = Tokens(), {"words": torch.randint(0, 11, (4, 7))}
    outputs = network(**words)
    shifted = {**outputs, "logits": outputs["logits"] + 3}  # the same probabilities
    for axis in ("auto", -1):
        comparison = compare_by(network, words, axis)
        assert comparison.of_tokens and float(comparison.loss()(shifted, outputs, 1.0)) < 1e-5
    assert not compare_by(network, words, None).of_tokens


def test_what_cannot_be_trained_is_still_cut(trained: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory for gradients\nsecond line")

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", fail)
    with pytest.warns(UserWarning, match=r"cut but not recovered: no memory for gradients \(recover=None"):
        compact = depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.3)
    assert unequal(compact, depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.3, recover=0)) == []
    assert depl0.info(compact).agreement is not None and not compact.training
    with pytest.raises(RuntimeError, match="no memory"):
        depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.3, recover=2)


class TwoHeads(nn.Module):
    """Class scores of every pixel, and one value."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.scores, self.value = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 4, 1), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        inner = self.stem(x).relu()
        return {"scores": 5 * self.scores(inner), "value": self.value(inner.mean((2, 3)))}


@pytest.mark.parametrize("axes", [{"scores": 1}, (1, None), 1], ids=["by name", "in order", "of the first"])
def test_every_output_has_an_axis_and_an_agreement_of_its_own(axes: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, data = TwoHeads(), [torch.randn(16, 1, 8, 8) for _ in range(3)]
    pruned = depl0.prune(network, data[0][:1], data=data, budget=0.5, recover=30, class_axis=axes)
    found = depl0.info(pruned).agreement
    assert found is not None and found.outputs is not None and list(found.outputs) == ["scores", "value"]
    assert found.outputs["scores"].equal == found.equal and found.outputs["value"].equal is None
    assert found.error == pytest.approx(sum(single.error for single in found.outputs.values()) / 2)
    assert "value: relative squared error" in str(depl0.info(pruned))
    again = depl0.info(depl0.load(depl0.save(pruned, tmp_path), TwoHeads))
    assert again.agreement == found and again.recovery == depl0.info(pruned).recovery is not None
    for wrong, words in (
        (("auto",), "has 1 entries, but the network has 2"),
        ({"box": 1}, "has 'box', but the outputs"),
    ):
        with pytest.raises(InputError, match=words):
            depl0.prune(network, data[0][:1], data=data, class_axis=wrong)


def test_wrong_arguments(trained: nn.Module) -> None:
    wrong: Any
    for wrong in (-1, 2.5, True, "always"):
        with pytest.raises(InputError, match="recover must be 'auto', None or a number of steps"):
            depl0.prune(trained, EXAMPLE, data=INPUTS, recover=wrong)
    with pytest.raises(InputError, match="steps and recover are both given"):
        depl0.prune(trained, EXAMPLE, data=BATCHES, recover=3, steps=3)
    for wrong in (0, 2, "rows"):
        with pytest.raises(InputError, match="class_axis must be an axis of output"):
            depl0.prune(trained, EXAMPLE, data=INPUTS, class_axis=wrong)
    with pytest.raises(InputError, match="augment must be False"):
        depl0.prune(Tokens(), torch.zeros(1, 7).long(), data=[torch.zeros(8, 7).long()], augment=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_of_progress_on_a_terminal(trained: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    depl0.prune(trained, EXAMPLE, data=INPUTS, budget=0.5, recover=3)
    shown = screen.getvalue()
    phases = ("analysing", "scoring, round 1 of 2 1/", "fitting, round 2 of 2 1/", "recovering 1/3", "recovering 3/3")
    places = [shown.index(word) for word in phases]
    assert places == sorted(places)
    assert "\n" not in shown and shown.endswith("\r") and shown.rstrip().endswith("left at most")


def test_a_line_for_every_stage_in_a_log(trained: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    depl0.prune(trained, EXAMPLE, data=INPUTS, budget=[0.75, 0.5], recover=20)
    lines = capsys.readouterr().err.splitlines()
    stages = [line.removeprefix("depl0: ").partition(" (")[0] for line in lines]
    assert stages == ["analysing"] + [
        stage
        for n, budget in ((1, 0.75), (2, 0.5))
        for stage in (f"scoring, round {n} of 2", f"fitting, round {n} of 2", f"recovering {budget:g}")
    ]
    assert ": 20 steps, " in lines[-1] and "equal answers" in lines[-1]
    depl0.prune(trained, EXAMPLE, data=INPUTS, recover=None)
    assert capsys.readouterr().err.splitlines()[-1].startswith("depl0: comparing")
    depl0.prune(trained, EXAMPLE, data=INPUTS, recover=None, quiet=True)
    assert capsys.readouterr().err == ""
