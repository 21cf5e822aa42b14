"""The search as a callback of real Lightning trainers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

import depl0
from tests.networks.trainers import BATCH, EXAMPLE, batches, dataset, network

pl = pytest.importorskip("lightning.pytorch")

from depl0.integrations.lightning import SearchCallback  # noqa: E402

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("remembered_plans"),
]


class Module(pl.LightningModule):
    """A classifier; what it notes lives outside, because trainers copy modules."""

    def __init__(self, notes: dict[str, list[Any]] | None = None) -> None:
        super().__init__()
        self.network = depl0.attach(network(), EXAMPLE, budget=0.5, rng=torch.Generator().manual_seed(0))
        self.notes = {"optimizers": [], "sizes": []} if notes is None else notes

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        self.log("loss", loss)
        self.notes["sizes"].append(self.network.host.body[3].weight.shape[0])
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        gates = {"params": list(self.network.gate_parameters()), "lr": 0.1, "weight_decay": 0.0}
        optimizer = torch.optim.AdamW([{"params": list(self.network.weight_parameters())}, gates], lr=1e-2)
        self.notes["optimizers"].append(optimizer)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def loader(shuffle: bool = False) -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=BATCH, shuffle=shuffle)


def trainer(callbacks: list[Any], epochs: int = 8, root: Path | None = None, **settings: Any) -> Any:
    settings = {"enable_checkpointing": False, **settings}
    return pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        default_root_dir=root,
        **settings,
    )


def callback(**settings: Any) -> SearchCallback:
    return SearchCallback(calibrate=batches(), loss=nn.functional.cross_entropy, **settings)


def check_within_budget(search: SearchCallback) -> None:
    info = depl0.info(search.compact)
    assert info.macs_left <= 0.5
    assert info.certificate.max_error < 1e-6


def test_network_optimizer_and_scheduler_shrink_during_fit_and_keep_the_budget() -> None:
    torch.manual_seed(3)
    module, search = Module(), callback()
    trainer([search]).fit(module, loader())
    assert search.search.steps == search.search.done == 80
    sizes = module.notes["sizes"]
    assert sizes[0] == 16 and sizes[-1] < 16
    check_within_budget(search)
    (optimizer,) = module.notes["optimizers"]
    held = optimizer.param_groups[0]["params"]
    assert [id(p) for p in held] == [id(p) for p in module.network.weight_parameters()]
    for parameter in held:
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape
        assert optimizer.state[parameter]["step"] == 80
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * (1 + torch.cos(torch.tensor(torch.pi * 0.4))) / 2)


class Manual(Module):
    """Takes a step of two optimizers for every batch; the trainer counts both."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        self.manual_backward(super().training_step(batch, number))
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        weights, gates = self.network.parameter_groups(lr=1e-2, steps=30)
        return torch.optim.SGD([weights]), torch.optim.Adam([gates])


def test_manual_optimization_with_two_optimizers() -> None:
    torch.manual_seed(3)
    module, search = Manual(), callback()
    fit = trainer([search], max_steps=60, epochs=-1)
    fit.fit(module, loader())
    assert fit.global_step == 60
    assert search.search.steps == search.search.done == 30 and search.search.is_frozen
    check_within_budget(search)


def test_accumulated_gradients_count_as_one_step() -> None:
    module, search = Module(), callback(cut="never")
    trainer([search], epochs=2, accumulate_grad_batches=3).fit(module, loader())  # 10 batches: steps of 3, 3, 3, 1
    assert search.search.steps == search.search.done == 8


def test_resuming_after_a_cut_equals_the_uninterrupted_run(tmp_path: Path) -> None:
    def run(epochs: int, ckpt: Path | None) -> tuple[dict[str, Tensor], SearchCallback, Any]:
        torch.manual_seed(3)
        module, search = Module(), callback(steps=80)
        saving = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}", enable_version_counter=False)
        fit = trainer([search, saving], epochs, tmp_path, enable_checkpointing=True)
        if ckpt is not None:
            torch.manual_seed(99)
        fit.fit(module, loader(shuffle=True), ckpt_path=ckpt)
        return module.state_dict(), search, module.notes["optimizers"][-1]

    whole, first, optimizer = run(8, None)
    paths = [tmp_path / f"epoch={epoch}.ckpt" for epoch in range(7)]
    states = [torch.load(path, weights_only=True)["state_dict"] for path in paths]  # noqa: TID251
    saved = paths[["network.removed_gates" in state for state in states].index(True)]  # other gates still move
    again, second, resumed = run(8, saved)
    assert second.search.done == 80
    torch.testing.assert_close(again, whole, rtol=0, atol=0)
    torch.testing.assert_close(resumed.state_dict(), optimizer.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(second.compact.state_dict(), first.compact.state_dict(), rtol=0, atol=0)


class Resumable:
    """Batches that go on where they were, as Lightning wants it for checkpoints in the middle of an epoch."""

    def __init__(self) -> None:
        self._batches, self._next = batches(10), 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Any:
        for place in range(self._next % len(self), len(self)):
            self._next = place + 1
            yield self._batches[place]

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def test_resuming_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    def run(ckpt: Path | None) -> dict[str, Tensor]:
        torch.manual_seed(3)
        module, search = Module(), callback()
        saving = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}", every_n_train_steps=13)
        trainer([search, saving], 8, tmp_path, enable_checkpointing=True).fit(module, Resumable(), ckpt_path=ckpt)
        assert search.search.done == 80
        return search.compact.state_dict()

    whole = run(None)
    torch.testing.assert_close(run(tmp_path / "step=39.ckpt"), whole, rtol=0, atol=0)


class Written(Module):
    """Leaves what became of it in a file for each process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_train_end(self) -> None:
        state = {name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}
        save_file(state, self.folder / f"{self.global_rank}.safetensors")


@pytest.mark.slow
def test_several_processes(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module, search = Written(tmp_path), callback(warmup=0.2)
    fit = trainer([search], 16, strategy="ddp_fork", devices=2, use_distributed_sampler=True)
    fit.fit(module, loader())
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    learned = [name for name in first if "running" not in name]
    torch.testing.assert_close({n: first[n] for n in learned}, {n: second[n] for n in learned}, rtol=0, atol=0)
    assert "removed_gates" in first
    assert depl0.info(module.network.extract()).macs_left <= 0.5


def test_averaged_weights_are_cut_alike_and_end_in_the_compact_network() -> None:
    torch.manual_seed(3)
    module, search = Module(), callback()
    mean = pl.callbacks.EMAWeightAveraging(decay=0.9, use_buffers=True)
    fit = trainer([mean, search])
    fit.fit(module, loader(), loader())
    average = mean._average_model.module
    assert average.network.host.body[3].weight.shape == module.network.host.body[3].weight.shape
    assert module.network.host.body[3].weight.shape[0] < 16
    torch.testing.assert_close(average.network.host.head.weight, module.network.host.head.weight)
    check_within_budget(search)


def test_averaging_after_the_search_is_refused() -> None:
    with pytest.raises(depl0.errors.InputError, match=r"WeightAveraging comes after SearchCallback.*\n.*put it before"):
        trainer([callback(), pl.callbacks.WeightAveraging()], 1).fit(Module(), loader())


def test_a_search_that_stops_early_is_finished_on_demand() -> None:
    search = callback(steps=80)
    trainer([search], epochs=1).fit(Module(), loader())
    assert search.search.done == 10 and not search.search.is_frozen
    check_within_budget(search)


def test_another_call_of_fit_goes_on_with_the_same_search() -> None:
    torch.manual_seed(3)
    module, search = Module(), callback(steps=20)
    trainer([search], epochs=1).fit(module, loader())
    assert search.search.done == 10
    trainer([search], epochs=1).fit(module, loader())
    assert search.search.done == 20 and search.search.is_frozen
    before = module.network.evaluation_gates()
    trainer([search], epochs=1).fit(module, loader())  # fine-tuning with frozen gates
    torch.testing.assert_close(module.network.evaluation_gates(), before, rtol=0, atol=0)
    check_within_budget(search)


def test_a_module_without_a_gated_network_is_refused() -> None:
    class Plain(Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = self.network.host

    with pytest.raises(depl0.errors.InputError, match="one gated network in Plain, found none"):
        trainer([callback()], 1).fit(Plain(), loader())
    with pytest.raises(depl0.errors.InputError, match="called 'net' in Module, found 'network'"):
        trainer([callback(gated="net")], 1).fit(Module(), loader())


def test_an_optimizer_without_the_gates_is_refused() -> None:
    class Forgetful(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.network.weight_parameters(), lr=0.1)

    with pytest.raises(depl0.errors.InputError, match="no optimizer trains the gates"):
        trainer([callback()], 1).fit(Forgetful(), loader())


def test_it_works_with_the_package_pytorch_lightning_too() -> None:
    other = pytest.importorskip("pytorch_lightning")

    class Other(other.LightningModule):
        training_step, configure_optimizers = Module.training_step, Module.configure_optimizers
        __init__ = Module.__init__

    search = callback()
    fit = other.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[other.callbacks.WeightAveraging(), search],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit.fit(_made(Other), loader())
    check_within_budget(search)


def _made(kind: Any) -> Any:
    module = kind.__new__(kind)
    type(module).__mro__[1].__init__(module)
    module.network = depl0.attach(network(), EXAMPLE, budget=0.5)
    module.notes = {"optimizers": [], "sizes": []}
    return module
