"""Learning from the dense network's outputs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from depl0.app.recipes.recipe import distill_share
from depl0.app.tasks import find_task
from depl0.errors import InputError
from depl0.search.recovery.distillation import DistillationLoss, block_names, block_outputs, soft_loss
from tests.networks.tiny import Noisy, TinyNet, interrupt, run, tiny_recipe

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]


def test_the_soft_loss_is_the_divergence_of_softened_answers() -> None:
    torch.manual_seed(0)
    scores, wanted = torch.randn(5, 4), torch.randn(5, 4)
    p, q = (wanted / 3).softmax(1), (scores / 3).softmax(1)
    by_hand = 9 * (p * (p.log() - q.log())).sum(1).mean()
    torch.testing.assert_close(soft_loss(scores, wanted, 3.0), by_hand)


def test_the_teacher_takes_a_share_of_the_task_and_stays_as_it_was() -> None:
    torch.manual_seed(0)
    dense = TinyNet()
    soft = find_task("classification").distill
    teacher = DistillationLoss(copy.deepcopy(dense), weight=0.25, temperature=1.0, blocks=0.0, soft=soft)
    images, labels = torch.randn(6, 1, 6, 6), torch.arange(6) % 4
    with torch.no_grad():
        wanted = dense.eval()(images)
        dense.linear.bias.add_(1.0)  # training goes on
    outputs = torch.randn(6, 4, requires_grad=True)
    task = nn.functional.cross_entropy(outputs, labels)
    mixed = teacher(task, outputs, images, {})
    torch.testing.assert_close(mixed, 0.75 * task + 0.25 * soft_loss(outputs, wanted, 1.0))


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(3)
    save_file(TinyNet().state_dict(), tmp_path / "dense.safetensors")
    return str(tmp_path / "dense.safetensors")


def test_a_run_with_distillation_learns_something_else_and_resumes_to_the_bit(tmp_path: Path, weights: str) -> None:
    plain = run(tiny_recipe(model__weights=weights), tmp_path / "plain")
    recipe = tiny_recipe(model__weights=weights, distill__weight=0.5)
    run(recipe, tmp_path / "whole")
    with pytest.raises(Exception, match="interrupted"):
        run(recipe, tmp_path / "parts", Noisy(7, interrupt))
    run(recipe, tmp_path / "parts", resume=True)
    files = {n: (tmp_path / n / "compact" / "compact.safetensors").read_bytes() for n in ("plain", "whole", "parts")}
    assert plain["steps"] == 15
    assert files["whole"] == files["parts"] != files["plain"]


def test_without_a_trained_network_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"distill\.weight must be 0 where model\.weights is empty"):
        tiny_recipe(distill__weight=0.5)


def test_it_is_on_by_default_where_there_is_a_trained_network(tmp_path: Path, weights: str) -> None:
    task = find_task("classification")
    assert distill_share(tiny_recipe(), task) == 0
    by_default = tiny_recipe(model__weights=weights)
    assert distill_share(by_default, task) == 0.9
    run(by_default, tmp_path / "default", told := Noisy())
    run(tiny_recipe(model__weights=weights, distill__weight=0.9), tmp_path / "asked")
    run(tiny_recipe(model__weights=weights, distill__weight=0.0), tmp_path / "off", quiet := Noisy())
    files = {n: (tmp_path / n / "compact" / "compact.safetensors").read_bytes() for n in ("default", "asked", "off")}
    assert files["default"] == files["asked"] != files["off"]
    assert any("distill.weight = 0" in note for note in told.notes)
    assert not any("distill" in note for note in quiet.notes)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(x).relu())


def test_blocks_are_compared_where_their_outputs_kept_their_shape() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(Residual(), nn.Sequential(Residual(), nn.ReLU()), nn.Flatten(), nn.Linear(32, 3))
    assert block_names(dense) == ("0", "1.0")
    teacher = DistillationLoss(copy.deepcopy(dense), weight=0.5, temperature=1.0, blocks=2.0)
    student = copy.deepcopy(dense)
    with torch.no_grad():
        student[0].outer.weight.mul_(0.5)
    images, task = torch.randn(3, 2, 4, 4), torch.tensor(1.0)
    with teacher.watch(student) as found:
        outputs = student(images)
    wanted = [dense[0](images), dense[1][0](dense[0](images))]
    own = [student[0](images), student[1][0](student[0](images))]
    errors = [(o - w).square().mean() / w.square().mean() for o, w in zip(own, wanted, strict=True)]
    soft = soft_loss(outputs, dense(images), 1.0)
    mixed = teacher(task, outputs, images, found)
    torch.testing.assert_close(mixed, 0.5 * task + 0.5 * soft + errors[0] + errors[1])
    assert not student[0]._forward_hooks
    found["0"] = found["0"][:, :1]  # a block whose channels were cut is left out
    alone = teacher(task, outputs, images, found)
    torch.testing.assert_close(alone, 0.5 * task + 0.5 * soft + 2.0 * errors[1])


def test_blocks_that_are_gone_are_left_out() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.TransformerEncoderLayer(2, 1))
    with block_outputs(network, ("1", "2.gone")) as found:
        network(torch.ones(1, 3, 2))
    assert list(found) == ["1"]
