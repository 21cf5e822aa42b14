"""Pruning without training: one call, and the same recovery in a search and in a recipe."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import depl0
from depl0.errors import InputError
from depl0.search import rounds
from tests.networks.loops import BATCHES, LOSS, Net, batch, trained_net
from tests.networks.tiny import TinyNet, run, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

INPUTS = [images for images, _ in BATCHES]


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return trained_net()


def accuracy(net: nn.Module) -> float:
    with torch.no_grad():
        return float(torch.cat([net(x).argmax(1) == y for x, y in map(batch, range(5000, 5010))]).float().mean())


def test_one_call_keeps_the_budget_and_most_of_the_accuracy(trained: nn.Module) -> None:
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    compact = depl0.prune(trained, torch.randn(1, 1, 6, 6), data=INPUTS, budget=0.5)
    assert 0.4 < depl0.info(compact).macs_left <= 0.5
    assert type(compact) is Net and depl0.info(compact).certificate.max_error < 1e-7
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    by_chance = depl0.attach(trained, torch.randn(1, 1, 6, 6), budget=0.5, generator="independent")
    by_chance.start_from(torch.randn(by_chance.plan.num_gates, generator=torch.Generator().manual_seed(0)))
    assert accuracy(trained) > 0.95
    assert accuracy(compact) > max(0.8, accuracy(by_chance.extract()))


def test_an_ordinary_loader_of_pairs_or_arrays_gives_the_same_network(trained: nn.Module) -> None:
    example = torch.randn(1, 1, 6, 6)
    wanted = depl0.prune(trained, example, data=INPUTS, recover=None)
    loader = DataLoader(TensorDataset(*map(torch.cat, zip(*BATCHES, strict=True))), batch_size=len(INPUTS[0]))
    arrays = [x.double().numpy() for x in INPUTS]
    for given, data in ((example, loader), ((example,), BATCHES), (example.double().numpy(), arrays)):
        found = depl0.prune(trained, given, data=data, recover=None).state_dict()
        assert all(torch.equal(value, found[name]) for name, value in wanted.state_dict().items())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> Any:
        return self.second(self.first(x).relu()) + shift


def test_a_tuple_of_two_arguments_is_no_pair() -> None:
    torch.manual_seed(0)
    x, shift = torch.randn(16, 4), torch.randn(16, 2)
    inputs = depl0.prune(TwoInputs(), (x, shift), data=[(x, shift)], recover=None)
    assert depl0.info(inputs).agreement.inputs == 2
    pairs = depl0.prune(TwoInputs(), (x, shift), data=[((x, shift), torch.zeros(16))], recover=None)
    assert depl0.info(pairs).agreement.inputs == 2
    with pytest.raises(InputError, match="data must give batches, got Tensor instead"):
        depl0.prune(TwoInputs(), (x, shift), data=x)


class Auxiliary(nn.Module):
    """Returns the outputs of a second head in training mode, as Inception does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head, self.auxiliary = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.body(x)
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_those_of_evaluation_mode(training: bool) -> None:
    torch.manual_seed(0)
    network, example = Auxiliary().train(training), torch.randn(1, 8)
    inputs = [torch.randn(16, 8) for _ in range(4)]
    pruned = depl0.prune(network, example, data=inputs, recover=4, quiet=True)
    assert depl0.info(pruned).recovery.steps == 4 and not pruned.training
    assert network.training == training == network.head.training
    pairs = [(each, torch.arange(16) % 4) for each in inputs]
    assert depl0.info(depl0.prune(network, example, data=pairs, steps=4, quiet=True)).macs_left <= 0.5


def test_one_call_that_trains(trained: nn.Module) -> None:
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    torch.manual_seed(0)
    batches = [batch(step) for step in range(40)]  # fewer than steps: they are read again
    compact = depl0.prune(trained, torch.randn(1, 1, 6, 6), data=batches, budget=0.15, steps=80)
    assert depl0.info(compact).macs_left <= 0.15 and type(compact) is Net
    assert not compact.training and not trained.training
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    assert accuracy(compact) > 0.9


def test_a_loss_of_ones_own_and_wrong_steps(trained: nn.Module) -> None:
    calls = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls.append(len(outputs))
        return LOSS(outputs, targets)

    example = torch.randn(1, 1, 6, 6)
    compact = depl0.prune(trained, example, data=iter(BATCHES), budget=0.5, steps=4, loss=loss)
    assert depl0.info(compact).macs_left <= 0.5 and len(calls) >= 4
    for steps in (1, 0, True, 2.5):
        with pytest.raises(InputError, match="steps must be an integer of at least 2"):
            depl0.prune(trained, example, data=BATCHES, steps=steps)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"with steps, a batch must be a pair \(inputs, targets\), got Tensor instead"):
        depl0.prune(trained, example, data=INPUTS, steps=4)
    with pytest.raises(InputError, match="the calibration data hold no batches"):
        depl0.prune(trained, example, data=[], steps=4)
    floats = [(x, y.float()) for x, y in BATCHES]
    with pytest.raises(InputError, match=r"targets must be a tensor of integer class indices, got torch\.float32"):
        depl0.prune(trained, example, data=floats, steps=4)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = trained

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": self.scores(x)}

    with pytest.raises(InputError, match="must return a tensor of class scores, got dict instead"):
        depl0.prune(Named(), example, data=BATCHES, steps=4)


def test_data_that_are_too_few_to_compare_networks_are_mentioned(trained: nn.Module) -> None:
    example = torch.randn(1, 1, 6, 6)
    with pytest.warns(UserWarning, match="data holds 1 examples, too few to hold any back"):
        compact = depl0.prune(trained, example, data=[example], recover=None)
    assert depl0.info(compact).agreement is None


def test_a_wrong_augmentation_is_named_before_anything_is_done(trained: nn.Module) -> None:
    with pytest.raises(InputError, match=r"^the result of augment must be a tensor, .* got int instead"):
        depl0.prune(trained, torch.randn(1, 1, 6, 6), data=INPUTS, recover=4, augment=lambda images: 3)


def test_other_budgets_and_wrong_ones(trained: nn.Module) -> None:
    options: dict[str, Any] = {"of": "params", "groups": "inner", "recover": None}
    compact = depl0.prune(trained, torch.randn(1, 1, 6, 6), data=INPUTS, budget=0.4, **options)
    assert depl0.info(compact).params_left <= 0.4 and compact.stem.out_channels == 8
    with pytest.raises(InputError, match="is infeasible"):
        depl0.prune(trained, torch.randn(1, 1, 6, 6), data=INPUTS, budget=0.001)
    with pytest.raises(InputError, match="the calibration data hold no batches"):
        depl0.prune(trained, torch.randn(1, 1, 6, 6), data=[])
    with pytest.raises(InputError, match="did you mean budget"):
        depl0.prune(trained, torch.randn(1, 1, 6, 6), data=INPUTS, buget=0.5)  # type: ignore[call-arg]


def test_a_recipe_is_scored_in_rounds_as_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    save_file(TinyNet().state_dict(), tmp_path / "dense.safetensors")
    calls, scores = [], rounds.reconstruction_scores
    monkeypatch.setattr(rounds, "reconstruction_scores", lambda *given: calls.append(given) or scores(*given))
    fields = {"model__weights": str(tmp_path / "dense.safetensors"), "gates__method": "reconstruction"}
    changes: Any = {**fields, "search__epochs": 0, "finetune__epochs": 0, "search__compensate": True}
    assert run(tiny_recipe(**changes, gates__budget=0.3), tmp_path / "run")["budget_reached"] <= 0.3
    assert len(calls) == len(rounds.round_shares([0.3])) > 1


def test_a_recipe_that_recovers_without_labels(tmp_path: Path) -> None:
    torch.manual_seed(3)
    network = TinyNet()
    network.linear.weight.data.mul_(50)  # answers that differ, so that there is something to lose
    save_file(network.state_dict(), tmp_path / "dense.safetensors")
    fields = {
        "model__weights": str(tmp_path / "dense.safetensors"),
        "gates__method": "reconstruction",
        "search__epochs": 0,
        "finetune__epochs": 0,
        "search__compensate": True,
    }
    kl = {}
    for steps in (0, 60):
        summary = run(tiny_recipe(**fields, finetune__recover=steps, gates__budget=0.3), tmp_path / str(steps))
        assert summary["steps"] == 0 and summary["budget_reached"] <= 0.3
        found = summary["agreement"]
        assert found["inputs"] == 24 and 0 <= found["equal"] <= 1
        kl[steps] = found["kl"]
        record = json.loads((tmp_path / str(steps) / "compact" / "compact.json").read_text())
        assert record["agreement"] == found
    assert kl[60] < kl[0]


# -- a floor for every layer -------------------------------------------------------------------------------------------


def lopsided() -> tuple[nn.Module, list[torch.Tensor]]:
    """A network with a layer whose channels are worth next to nothing."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))
    with torch.no_grad():
        network[2].weight[2:] *= 1e-4
        network[2].bias.zero_()
    return network, [torch.randn(1024, 8)]


def kept(compact: nn.Module) -> list[int]:
    return [layer.out_features for layer in compact if isinstance(layer, nn.Linear)]


def test_every_layer_keeps_a_tenth_unless_said_otherwise() -> None:
    network, data = lopsided()
    options = {"data": data, "budget": 0.2, "recover": None}
    assert kept(depl0.prune(network, data[0][:1], **options, min_share=0.0))[1] < 4
    assert kept(depl0.prune(network, data[0][:1], **options))[1] >= 4


def test_layers_below_a_tenth_are_named() -> None:
    network, data = lopsided()
    with pytest.warns(UserWarning, match=r"leaves less than 10% of the channels of .*\(\d of 40\).*min_share") as seen:
        depl0.prune(network, data[0][:1], data=data, budget=0.03, recover=None)
    assert {warning.filename for warning in seen} == {__file__}


# -- rounding, and warnings --------------------------------------------------------------------------------------------


def wide(width: int) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    return network, [torch.randn(256, 8)]


@pytest.mark.parametrize(
    ("width", "options", "multiple"), [(96, {}, 8), (96, {"round_to": 1}, 1), (96, {"budget": 0.012}, 1), (90, {}, 1)]
)
def test_wide_networks_keep_multiples_of_8(width: int, options: dict[str, Any], multiple: int) -> None:
    network, data = wide(width)
    pruned = depl0.prune(network, data[0][:1], data=data, recover=None, **{"budget": 0.3, **options})
    assert all(count % 8 == 0 for count in kept(pruned)[:-1]) is (multiple == 8)
    assert depl0.info(pruned).macs_left <= options.get("budget", 0.3)


def test_a_network_that_can_hardly_be_used_is_said_to_be_so() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 4, bias=False))
    data = [torch.randn(256, 64)]  # every channel is as necessary as every other
    with pytest.warns(
        UserWarning, match="has little in common with the original one: .* Ask for a larger budget"
    ) as seen:
        depl0.prune(network, data[0][:1], data=data, budget=0.02, recover=None, class_axis=None)
    assert {warning.filename for warning in seen} == {__file__}
    with pytest.warns(UserWarning, match=r"the recovery of 20 steps gained nothing: .* -> |went from"):
        depl0.prune(network, data[0][:1], data=data, budget=0.5, recover=20, lr=1e-9)


def test_attention_that_reads_only_ungated_channels_is_scored() -> None:
    network = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)).eval()
    data = [torch.randn(32, 6, 16) for _ in range(2)]
    pruned = depl0.prune(network, data[0][:1], data=data, budget=0.7, recover=None, quiet=True)
    assert depl0.info(pruned).macs_left <= 0.7


def test_more_groups_are_only_proposed_if_there_are_more(trained: nn.Module) -> None:
    for groups, is_proposed in (("all", False), ("inner", True)):
        with pytest.raises(InputError, match="is infeasible") as found:
            depl0.prune(trained, torch.randn(1, 1, 6, 6), data=INPUTS, budget=0.001, groups=groups)  # type: ignore[arg-type]
        assert ("groups='all'" in str(found.value)) is is_proposed


def test_data_of_a_few_classes_of_many_are_noticed() -> None:
    torch.manual_seed(0)
    network, inputs = nn.Sequential(nn.Linear(100, 32), nn.ReLU(), nn.Linear(32, 100)), torch.eye(100).repeat(4, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(150):
        LOSS(network(inputs), torch.arange(400) % 100).backward()
        optimizer.step()
        optimizer.zero_grad()
    few = inputs[torch.arange(400) % 100 < 5].repeat(32, 1)
    few = torch.cat([few, inputs[:160]])[torch.randperm(800)]  # a fifth of the answers are in other classes
    with pytest.warns(UserWarning, match=r"answers to 100 held-out inputs are in about \d of its 100 classes"):
        depl0.prune(network, inputs[:1], data=[few], recover=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        depl0.prune(network, inputs[:1], data=[inputs[torch.randperm(400)]], budget=0.9, recover=None)
