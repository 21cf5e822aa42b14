"""The search in somebody's own loop: nothing but plain PyTorch around it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import depl0
from depl0.errors import DivergedError, GateError, InputError
from depl0.search.freezing import freeze_network
from tests.networks.loops import BATCHES, LOSS, STEPS, Loop, Net, batch

pytestmark = [pytest.mark.structures, pytest.mark.usefixtures("remembered_plans")]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = torch.utils._pytree.tree_leaves(one), torch.utils._pytree.tree_leaves(other)
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


@pytest.fixture(scope="module")
def whole() -> tuple[Loop, list[int], nn.Module]:
    loop = Loop()
    return loop, loop.train(STEPS), loop.search.finish()


def test_a_loop_of_ones_own_keeps_the_budget_and_shrinks_on_the_way(whole: tuple[Loop, list[int], nn.Module]) -> None:
    _, cuts, compact = whole
    assert cuts and cuts[0] < STEPS - 1
    info = depl0.info(compact)
    assert 0.3 < info.macs_left <= 0.4
    assert info.certificate.max_error < 1e-7
    counted = depl0.cost(compact, torch.randn(1, 1, 6, 6))
    assert (counted.macs, counted.params) == (info.compact.macs, info.compact.params)
    assert type(compact) is Net and sum(p.numel() for p in compact.parameters()) == counted.params
    x, y = batch(5000)
    assert (compact.eval()(x).argmax(1) == y).float().mean() > 0.8


def test_everything_that_holds_parameters_is_carried_along(whole: tuple[Loop, list[int], nn.Module]) -> None:
    loop, _, _ = whole
    weights = list(loop.gated.weight_parameters())
    assert [p for group in loop.sgd.param_groups for p in group["params"]] == weights  # the same objects
    assert all(loop.sgd.state[p]["momentum_buffer"].shape == p.shape for p in weights)
    assert loop.sgd.param_groups[0]["lr"] < 0.01  # the scheduler went on
    mean = loop.average.module
    assert {n: p.shape for n, p in mean.named_parameters()} == {n: p.shape for n, p in loop.gated.named_parameters()}


def test_averaged_weights_are_extracted_after_they_were_loaded(whole: tuple[Loop, list[int], nn.Module]) -> None:
    loop = Loop()
    loop.train(STEPS)
    loop.gated.host.load_state_dict(loop.average.module.host.state_dict())
    averaged = loop.search.finish()
    assert depl0.info(averaged).compact == depl0.info(whole[2]).compact
    assert not torch.equal(averaged.head.weight, whole[2].head.weight)
    x, y = batch(5000)
    assert (averaged.eval()(x).argmax(1) == y).float().mean() > 0.8


@pytest.mark.parametrize("after_the_cut", [False, True])
def test_a_killed_search_resumes_to_the_bit(after_the_cut: bool, whole: tuple[Loop, list[int], nn.Module]) -> None:
    _, cuts, compact = whole
    step = cuts[0] + after_the_cut
    first = Loop()
    first.train(step)
    state = first.state()
    del first  # killed
    second = Loop()
    second.load(state)
    second.train(STEPS - step)
    assert same(second.search.finish().state_dict(), compact.state_dict())
    assert same(second.state(), whole[0].state())


def test_the_state_of_another_network_is_refused() -> None:
    loop = Loop()
    loop.gated.remove(torch.arange(loop.gated.plan.num_gates) < 2)
    loop.gated.cut()
    fresh = depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.4)
    forbid_access_to = depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.4)
    with pytest.raises(GateError, match="has lost channels that the saved state still has"):
        loop.gated.load_state_dict(forbid_access_to.state_dict())
    other = depl0.attach(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), torch.randn(1, 1, 6, 6))
    with pytest.raises(GateError, match=r"the saved state has \(20,\) gates"):
        other.load_state_dict(loop.gated.state_dict(), strict=False)
    fresh.load_state_dict(loop.gated.state_dict())
    assert torch.equal(fresh.removed, loop.gated.removed)
    assert fresh.host.stem.out_channels == loop.gated.host.stem.out_channels < 8


def test_without_labels() -> None:
    loop = Loop(calibrate=[images for images, _ in BATCHES], loss=None)
    loop.train(1)
    scores = loop.gated.log_alpha().detach()
    assert float(scores.std()) > 0.1  # the data said something
    loop.train(STEPS - 1)
    assert depl0.info(loop.search.finish()).macs_left <= 0.4


def test_a_loader_with_persistent_workers_is_read_by_both() -> None:
    """It has one iterator: reading it for calibration would end the epoch of the loop around the search."""
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*BATCHES, strict=True)))
    loader = DataLoader(data, batch_size=16, num_workers=1, persistent_workers=True)
    loop = Loop(calibrate=loader)
    epochs = []
    for _ in range(2):
        count = 0
        for _ in loader:
            loop.train(1)
            count += 1
        epochs.append(count)
    assert epochs == [len(loader)] * 2 and len(loader) > 2


def test_mixed_precision() -> None:
    loop = Loop(average=False)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loop.gated(x).float()

    loop.train(STEPS, forward)
    assert depl0.info(loop.search.finish()).macs_left <= 0.4


def test_compiled() -> None:
    torch._dynamo.reset()
    plain, fast = Loop(average=False), Loop(average=False)
    compiled = torch.compile(fast.gated, backend="eager")
    cuts = plain.train(STEPS)
    assert fast.train(STEPS, compiled) == cuts and cuts
    assert same(plain.gated.state_dict(), fast.gated.state_dict())


def test_an_average_of_the_host_alone_is_cut_too() -> None:
    loop = Loop(average=False)
    mean = AveragedModel(loop.gated.host)
    loop.search = depl0.Search(loop.gated, STEPS, optimizers=[loop.sgd], averages=[mean], calibrate=BATCHES, loss=LOSS)
    assert loop.train(STEPS)
    assert mean.module.stem.out_channels == loop.gated.host.stem.out_channels
    mean.update_parameters(loop.gated.host)
    stranger = depl0.Search(Loop(average=False).gated, 1, averages=[nn.Linear(2, 2)], cut="never")
    with pytest.raises(InputError, match="averages holds a Linear with no copy of the network"):
        stranger.cut(torch.arange(stranger.gated.plan.num_gates) < 2)


def test_weights_that_no_optimizer_holds_are_refused() -> None:
    """After a cut nobody would train them."""
    gated = Loop(average=False).gated
    with pytest.raises(InputError, match=r"does not hold 11 of the network's 11 weights, such as 'stem\.weight'"):
        depl0.Search(gated, 10)
    some = torch.optim.SGD([p for name, p in gated.host.named_parameters() if "norm1" not in name], lr=0.1)
    with pytest.raises(InputError, match=r"does not hold 2 of the network's 11 weights, such as 'norm1\.weight'"):
        depl0.Search(gated, 10, optimizers=[some])
    gated.host.norm1.requires_grad_(False)
    depl0.Search(gated, 10, optimizers=[some])
    depl0.Search(gated, 10, cut="never")
    depl0.Search(gated, 0)


def test_an_optimizer_from_before_a_saved_state_was_loaded_is_refused() -> None:
    first = Loop(average=False)
    first.train(STEPS)
    second = Loop(average=False)
    gated, stale = second.gated, second.sgd
    gated.load_state_dict(first.gated.state_dict())
    with pytest.raises(InputError, match="does not hold 11 of the network's 11 weights"):
        depl0.Search(gated, STEPS, optimizers=[stale], state=first.search.state_dict())


def test_what_a_cut_would_lose_is_refused() -> None:
    gated = depl0.attach(Net(), torch.randn(2, 1, 6, 6), budget=0.4)
    lookahead = type("Lookahead", (torch.optim.SGD,), {})  # timm's; keeps slow weights in its groups
    for kind in (torch.optim.LBFGS, torch.optim.Adafactor, lookahead):
        optimizer = kind(gated.host.parameters(), lr=0.1)
        with pytest.raises(InputError, match=f"what {kind.__name__} remembers cannot be cut"):
            depl0.Search(gated, STEPS, optimizers=[optimizer])
        depl0.Search(gated, STEPS, optimizers=[optimizer], cut="never")
    sgd = torch.optim.SGD(gated.host.parameters(), lr=0.1)
    weight = next(gated.host.parameters())
    for register in (weight.register_hook, weight.register_post_accumulate_grad_hook):
        handle = register(lambda _: None)
        with pytest.raises(InputError, match="has hooks, which a cut would lose"):
            depl0.Search(gated, STEPS, optimizers=[sgd])
        handle.remove()
    depl0.Search(gated, STEPS, optimizers=[sgd])


def test_the_state_of_another_search_is_refused() -> None:
    state = Loop(average=False).search.state_dict()
    for name, other in (("steps 40", {"steps": 50}), ("budget 0.4", {"budget": 0.5})):
        with pytest.raises(InputError, match=f"the saved search has {name}, this one has"):
            Loop(average=False, **other).search.load_state_dict(state)


def test_a_penalty_instead_of_a_budget() -> None:
    loop = Loop(budget=None, generator="independent", average=False)
    adam = torch.optim.Adam(loop.gated.gate_parameters(), lr=0.4)
    for step in range(STEPS):
        loop.search.step()
        x, y = batch(step)
        (LOSS(loop.gated(x), y) + 10 * loop.gated.penalty("macs")).backward()
        for optimizer in (loop.sgd, adam):
            optimizer.step()
            optimizer.zero_grad()
    assert depl0.info(loop.search.finish()).macs_left < 0.6


def test_a_search_can_start_pruned_and_compensated() -> None:
    """With no ramp the first step is already at the budget, and keeps what a plain cut would lose."""
    torch.manual_seed(0)
    host, images = Net().eval(), torch.cat([inputs for inputs, _ in BATCHES])
    wanted = host(images)
    errors = {}
    for compensate in (True, False):
        gated = depl0.attach(copy.deepcopy(host), images[:1], budget=0.4)
        options: Any = {"first_scores": "reconstruction", "ramp": 0.0, "compensate": compensate, "cut": "never"}
        search = depl0.Search(gated, 20, calibrate=BATCHES, loss=LOSS, **options)
        search.step()
        gated.eval()
        errors[compensate] = float((gated(images) - wanted).square().mean().detach())
        assert gated.snapshot().share(gated.evaluation_gates() > 0, "macs") <= 0.5
    assert errors[True] < 0.5 * errors[False]


def test_gates_that_only_the_initialisation_has_closed_are_not_cut_out() -> None:
    """The paper's preset, without any penalty: nothing but random numbers closes gates, so nothing may go."""
    loop = Loop(budget=None, average=False, preset="paper")
    with torch.no_grad():
        started_closed = depl0.gates.hard_concrete.open_probability(loop.gated.log_alpha()) < 0.01
        assert 3 <= int(started_closed.sum()) < 20  # of 20 gates
    assert loop.train(STEPS // 2) == []
    with torch.no_grad():  # what opens and closes again has been judged, and goes
        loop.gated.start_from(torch.full((20,), 3.0))
    loop.train(2)
    with torch.no_grad():
        loop.gated.start_from(torch.where(started_closed, -9.0, 3.0))
    loop.train(4)
    assert torch.equal(loop.gated.removed, started_closed & loop.gated.snapshot().removable(started_closed))


def test_never_cuts_only_when_the_search_is_finished() -> None:
    loop = Loop(cut="never")
    assert not loop.train(STEPS)
    assert not loop.search.is_frozen
    assert depl0.info(loop.search.finish()).macs_left <= 0.4


# -- extraction and freezing -------------------------------------------------------------------------------------------


def test_extract_keeps_the_budget_whatever_the_gates_say() -> None:
    gated = depl0.attach(Net(), torch.randn(1, 1, 6, 6), budget=0.5).eval()
    assert bool((gated.evaluation_gates() > 0).all())  # nobody has searched
    for rounded in (1, 2):
        assert depl0.info(gated.extract(round_to=rounded)).macs_left <= 0.5
    gated.fix_gates(torch.ones(gated.plan.num_gates))
    with pytest.raises(GateError, match=r"fixed gates leave 1.0000 of the macs, more than the budget of 0.5"):
        gated.extract()
    frozen = freeze_network(gated)
    assert gated.is_fixed and torch.equal(gated.evaluation_gates(), frozen.gates)
    assert depl0.info(gated.extract()).macs_left <= 0.5


def test_print_shows_gates_budget_and_cost(whole: tuple[Loop, list[int], nn.Module]) -> None:
    text = repr(whole[0].gated)
    for words in ("GatedModel(Net", "20 gates in 2", "budget  40.0% of the MACs", "minimum", "for good", "fixed"):
        assert words in text
    told = str(depl0.info(whole[2]))
    assert "certificate" in told and "conv1" in told and "of the MACs" in told


def test_print_never_fails() -> None:
    gated = Loop().gated
    gated.free_gates()
    with torch.no_grad():
        next(gated.gate_parameters()).fill_(float("nan"))
    assert "log alpha is nan" in repr(gated)


# -- wrong input -------------------------------------------------------------------------------------------------------


def test_wrong_settings_are_refused() -> None:
    gated = Loop().gated
    for changes, words in (
        ({"cut": "often"}, "'often'"),
        ({"ramp": 1.5}, "ramp must be between 0 and 1"),
        ({"warmup": 0.6, "ramp": 0.6}, "warmup and ramp must together be at most 1"),
        ({"rampp": 0.5}, "did you mean ramp"),
    ):
        with pytest.raises(InputError, match=words):
            depl0.Search(gated, 10, **changes)
    with pytest.raises(InputError, match="needs a gated network, got Net"):
        depl0.Search(Net(), 10)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="steps must be an integer"):
        depl0.Search(gated, 0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="calibrate must give batches"):
        depl0.Search(gated, 10, calibrate=torch.randn(3))
    with pytest.raises(InputError, match=r"must be a pair \(inputs, targets\)"):
        Loop(calibrate=[torch.randn(2, 1, 6, 6)])


def test_a_network_that_gives_nan_is_refused() -> None:
    loop = Loop()
    with torch.no_grad():
        loop.gated.host.head.bias.fill_(float("nan"))
    with pytest.raises(DivergedError, match="first scores of the gates are not finite at step 0"):
        loop.search.step()


def test_an_early_finish_warns_and_still_keeps_the_budget() -> None:
    loop = Loop()
    loop.train(29)
    with pytest.warns(UserWarning, match=f"after 29 of {STEPS} steps: channels that the search would have closed"):
        compact = loop.search.finish()
    assert depl0.info(compact).macs_left <= 0.4


# -- errors that name what to change ----------------------------------------------------------------------------------


def test_a_state_that_is_none_is_refused() -> None:
    search = Loop(average=False).search
    whole = search.state_dict()
    for state, missing in (({}, "closed_streak"), (None, "search"), ({"search": whole["search"]}, "closed_streak")):
        with pytest.raises(InputError, match=f"saved state of a search has no '{missing}'"):
            search.load_state_dict(state)
    search.load_state_dict(whole)


def test_a_loader_of_other_batches_is_refused_in_the_first_step() -> None:
    images, labels = BATCHES[0]
    gated = Loop(average=False).gated
    loader = DataLoader(TensorDataset(images, images, images, labels), 8, shuffle=True)
    search = depl0.Search(gated, STEPS, calibrate=loader, loss=LOSS, cut="never")
    with pytest.raises(
        InputError, match=r"pair \(inputs, targets\), got a \w+ of 4 entries .*\nhint: group its entries"
    ):
        search.step()


class Mine:
    """A function of a user's that fails when it is called for a given time."""

    def __init__(self, good: int) -> None:
        self.left = good

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("a mistake of mine")
        return args[0] if len(args) == 1 else LOSS(*args)


def test_an_error_of_a_users_function_names_it_and_the_step() -> None:
    images = [inputs for inputs, _ in BATCHES]
    example, error = (
        images[0][:1],
        r", {} 'Mine' failed at .*test_search.py, line \d+: ZeroDivisionError: a mistake of mine",
    )
    with pytest.raises(InputError, match="on the first batch, before anything was done" + error.format("augment")):
        depl0.prune(Net(), example, budget=0.5, data=images, augment=Mine(0), quiet=True)
    with pytest.raises(InputError, match="in step 2 of the recovery" + error.format("augment")):
        depl0.prune(Net(), example, budget=0.5, data=images, augment=Mine(2), recover=5, quiet=True)
    with pytest.raises(InputError, match="in step 3 of the fine-tuning" + error.format("loss")):
        depl0.prune(Net(), example, budget=0.5, data=BATCHES, loss=Mine(2), steps=5, quiet=True)
    with pytest.raises(InputError, match=r"loss must return one number, got shape \(16, 4\) instead"):
        depl0.prune(Net(), example, budget=0.5, data=BATCHES, loss=lambda outputs, _: outputs, steps=5, quiet=True)
    with pytest.raises(InputError, match=r"class_axis must be an axis .* got 5 instead"):
        depl0.prune(Net(), example, budget=0.5, data=images, class_axis=5, quiet=True)
    with pytest.raises(InputError, match="while channels were scored" + error.format("loss")):
        Loop(average=False, loss=Mine(0)).train(1)
