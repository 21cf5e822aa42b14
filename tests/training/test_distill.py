"""Learning from the dense network's outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from depl0.errors import InputError
from depl0.tasks import find_task
from depl0.tasks.classification import soft_loss
from depl0.training.distill import Distillation
from depl0.training.phase import Losses
from tests.training.tiny import Noisy, TinyNet, interrupt, run, tiny_recipe


def test_the_soft_loss_is_the_divergence_of_softened_answers() -> None:
    torch.manual_seed(0)
    scores, wanted = torch.randn(5, 4), torch.randn(5, 4)
    p, q = (wanted / 3).softmax(1), (scores / 3).softmax(1)
    by_hand = 9 * (p * (p.log() - q.log())).sum(1).mean()
    torch.testing.assert_close(soft_loss(scores, wanted, 3.0), by_hand)


def test_the_teacher_takes_a_share_of_the_task_and_stays_as_it_was() -> None:
    torch.manual_seed(0)
    dense = TinyNet()
    teacher = Distillation(dense, find_task("classification"), weight=0.25, temperature=1.0)
    images, labels = torch.randn(6, 1, 6, 6), torch.arange(6) % 4
    with torch.no_grad():
        wanted = dense.eval()(images)
        dense.linear.bias.add_(1.0)  # training goes on; the teacher is a copy
    outputs = torch.randn(6, 4, requires_grad=True)
    task = nn.functional.cross_entropy(outputs, labels)
    mixed = teacher.mixed(Losses(task + 7.0, task, outputs), images)
    torch.testing.assert_close(mixed, 7.0 + 0.75 * task + 0.25 * soft_loss(outputs, wanted, 1.0))


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(3)
    save_file(TinyNet().state_dict(), tmp_path / "dense.safetensors")
    return str(tmp_path / "dense.safetensors")


def test_a_run_with_distillation_learns_something_else_and_resumes_to_the_bit(tmp_path: Path, weights: str) -> None:
    plain = run(tiny_recipe(model__weights=weights), tmp_path / "plain")
    recipe = tiny_recipe(model__weights=weights, search__distill=0.5)
    run(recipe, tmp_path / "whole")
    with pytest.raises(Exception, match="interrupted"):
        run(recipe, tmp_path / "parts", Noisy(7, interrupt))
    run(recipe, tmp_path / "parts", resume=True)
    files = {n: (tmp_path / n / "compact" / "compact.safetensors").read_bytes() for n in ("plain", "whole", "parts")}
    assert plain["steps"] == 15
    assert files["whole"] == files["parts"] != files["plain"]


def test_without_a_trained_network_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"search\.distill must be 0 where model\.weights is empty"):
        tiny_recipe(search__distill=0.5)
