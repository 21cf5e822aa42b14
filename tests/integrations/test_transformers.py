"""The search as a callback of the real Hugging Face Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

import depl0
from tests.networks.trainers import BATCH, EXAMPLE, batches, dataset, network
from tests.support.forkserver import ForkServer, ranks

transformers = pytest.importorskip("transformers")

from depl0.integrations.transformers import SearchCallback  # noqa: E402

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("remembered_plans"),
]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = depl0.attach(network(), EXAMPLE, budget=0.5, rng=torch.Generator().manual_seed(0))
        self.sizes: list[int] = []

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if self.training:
            self.sizes.append(self.network.host.body[3].weight.shape[0])
        logits = self.network(pixels)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Pixels(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self._pairs = dataset()

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        pixels, label = self._pairs[place]
        return {"pixels": pixels, "labels": label}


def optimizer_for(model: Model) -> torch.optim.Optimizer:
    gates = {"params": list(model.network.gate_parameters()), "lr": 0.1, "weight_decay": 0.0}
    return torch.optim.AdamW([{"params": list(model.network.weight_parameters())}, gates], lr=1e-2)


class LateOptimizer(transformers.Trainer):
    """Makes its optimizer when the training begins."""

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = optimizer_for(self.model)
        return self.optimizer


def trainer(
    folder: Path, search: SearchCallback, model: Model | None = None, *, late: bool = False, **settings: Any
) -> Any:
    torch.manual_seed(3)
    model = model or Model()
    settings = {"num_train_epochs": 8, "save_strategy": "no", **settings}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        seed=3,
        **settings,
    )
    given = {} if late else {"optimizers": (optimizer_for(model), None)}
    kind = LateOptimizer if late else transformers.Trainer
    return kind(model, arguments, train_dataset=Pixels(), eval_dataset=Pixels(), callbacks=[search], **given)


def callback(**settings: Any) -> SearchCallback:
    return SearchCallback(calibrate=batches(), loss=nn.functional.cross_entropy, **settings)


def check_within_budget(search: SearchCallback) -> None:
    info = depl0.info(search.compact)
    assert info.macs_left <= 0.5
    assert info.certificate.max_error < 1e-6
    assert not search.compact.training


def test_network_optimizer_and_scheduler_shrink_during_training_and_keep_the_budget(tmp_path: Path) -> None:
    search = callback()
    fit = trainer(tmp_path, search)
    fit.train()
    assert search.search.steps == search.search.done == 80
    assert fit.model.sizes[0] == 16 and fit.model.sizes[-1] < 16
    check_within_budget(search)
    held = fit.optimizer.param_groups[0]["params"]
    assert [id(p) for p in held] == [id(p) for p in fit.model.network.weight_parameters()]
    for parameter in held:
        assert fit.optimizer.state[parameter]["exp_avg"].shape == parameter.shape
        assert fit.optimizer.state[parameter]["step"] == 80
    assert fit.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)  # the end of the trainer's schedule


def test_accumulated_gradients_count_as_one_step(tmp_path: Path) -> None:
    search = callback(cut="never")
    trainer(tmp_path, search, gradient_accumulation_steps=3, num_train_epochs=2).train()  # 3, 3, 3, 1 of 10 batches
    assert search.search.steps == search.search.done == 8
    check_within_budget(search)


@pytest.mark.parametrize(("late", "step"), [(False, 30), (True, 35)])  # at the end and in the middle of an epoch
def test_resuming_after_a_cut_equals_the_uninterrupted_run(tmp_path: Path, late: bool, step: int) -> None:
    first = callback()
    whole = trainer(tmp_path, first, late=late, save_strategy="steps", save_steps=step)
    whole.train()
    folder = tmp_path / f"checkpoint-{step}"
    assert "network.removed_gates" in load_file(folder / "model.safetensors")
    second = callback()
    again = trainer(tmp_path / "again", second, late=late)
    torch.rand(7)  # what the trainer restores, not what this process happens to be at
    again.train(resume_from_checkpoint=str(folder))
    assert second.search.done == 80 and len(again.model.sizes) == 80 - step
    torch.testing.assert_close(again.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(
        again.optimizer.state_dict()["state"], whole.optimizer.state_dict()["state"], rtol=0, atol=0
    )
    torch.testing.assert_close(second.compact.state_dict(), first.compact.state_dict(), rtol=0, atol=0)


def test_a_checkpoint_without_a_search_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, callback(), save_strategy="steps", save_steps=10, num_train_epochs=1).train()
    file = tmp_path / "checkpoint-10" / "trainer_state.json"
    state = json.loads(file.read_text())
    del state["stateful_callbacks"]["SearchCallback"]
    file.write_text(json.dumps(state))
    with pytest.raises(depl0.errors.InputError, match="the checkpoint at step 10 has no search in it"):
        trainer(tmp_path, callback()).train(resume_from_checkpoint=str(file.parent))


def test_an_optimizer_for_another_network_is_refused(tmp_path: Path) -> None:
    fit = trainer(tmp_path, callback())
    fit.optimizer = optimizer_for(Model())
    with pytest.raises(depl0.errors.InputError, match="no optimizer trains the weights"):
        fit.train()


def test_the_best_model_cannot_come_back_into_a_smaller_one(tmp_path: Path) -> None:
    settings = {"load_best_model_at_end": True, "save_strategy": "epoch", "eval_strategy": "epoch"}
    fit = trainer(tmp_path, callback(), **settings)
    with pytest.raises(depl0.errors.InputError, match="load_best_model_at_end"):
        fit.train()


def train_in_ranks(rank: int, folder: Path) -> int:
    search = callback(warmup=0.2)
    fit = trainer(folder / "out", search, ddp_backend="gloo")
    fit.train()
    state = {name: tensor.contiguous() for name, tensor in search.compact.state_dict().items()}
    save_file(state, folder / f"{rank}.safetensors")
    (folder / f"sizes{rank}.json").write_text(json.dumps(fit.model.sizes))
    return 0


@pytest.mark.processes
def test_several_processes_cut_while_they_train(server: ForkServer, tmp_path: Path) -> None:
    what = "tests.integrations.test_transformers:train_in_ranks"
    codes, said = ranks(server, tmp_path, what)
    assert codes == [0, 0], said
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    learned = [name for name in first if "running" not in name]
    torch.testing.assert_close({n: first[n] for n in learned}, {n: second[n] for n in learned}, rtol=0, atol=0)
    sizes = json.loads((tmp_path / "sizes0.json").read_text())
    assert sizes[-1] < sizes[0]


def test_a_model_without_a_gated_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(depl0.errors.InputError, match="one gated network in Linear, found none"):
        trainer(tmp_path, callback(), nn.Linear(2, 2), late=True)


def test_a_gated_network_as_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(depl0.errors.InputError, match="cannot train a gated network by itself"):
        trainer(tmp_path, callback(), Model().network, late=True)
