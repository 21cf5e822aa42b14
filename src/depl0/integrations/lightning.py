"""A search in Lightning's ``Trainer``: one callback, for ``lightning`` and ``pytorch_lightning``.

The LightningModule holds the gated network and trains it; the callback does what :class:`depl0.Search` does in a custom
training loop. See docs/integrations.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias, final

from torch import nn

from depl0._util.distributed import world_size
from depl0._util.optional import missing
from depl0._util.random import random_state, set_random_state
from depl0.errors import InputError
from depl0.integrations._shared import SearchHolder, check_trained, find_gated, match_size
from depl0.search.search import Search

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""the same code under two names; a callback for one also works with the other's trainer"""

LightningModule: TypeAlias = Any
Trainer: TypeAlias = Any


def _package() -> str:
    for package in PACKAGES:
        if find_spec(package.split(".")[0]) is not None:
            return package
    raise missing("lightning", "for depl0.integrations.lightning", extra="lightning")


Callback: Any = import_module(f"{_package()}.callbacks").Callback


@final
class SearchCallback(SearchHolder, Callback):  # type: ignore[misc]
    """Prunes a gated network to its budget while Lightning trains it.

    ::

        class Classifier(LightningModule):
            def __init__(self, network, example):
                super().__init__()
                self.gated = depl0.attach(network, example, budget=0.5)
            ...

        callback = SearchCallback(calibrate=loader, loss=nn.functional.cross_entropy)
        Trainer(max_epochs=10, callbacks=[callback]).fit(module, loader)
        depl0.info(callback.compact)

    The search takes one step for every step of the optimizers, also with accumulated gradients, and is saved and
    restored with the trainer's checkpoints. The module's optimizers, learning-rate schedulers and weight-averaging
    callbacks are adapted when the network becomes smaller; put averaging callbacks before this one.

    Args:
        gated: the name of the module's attribute that holds the gated network; None if there is only one.
        steps: the optimizer steps of the search; None: all steps of the trainer, or the original number in a resumed
            training.
        calibrate: batches for first scores and statistics, as for :class:`depl0.Search`; they are moved to the device.
        loss: the loss of the task, if batches are pairs (inputs, targets).
        averages: further modules that hold a copy of the network.
        config: configuration of the search; defaults to ``SearchConfig()``.
        changes: fields of the configuration to set.
    """

    _begins = "trainer.fit(module)"
    _saved: dict[str, Any] | None = None  # state of the search, until there is one
    _rng: dict[str, Any] | None = None  # to continue in the middle of an epoch
    _seen_step: int | None = None  # the trainer's step for which the search is prepared
    _is_mid_epoch = _is_fitting = False
    _max_epochs: int | None = None

    # -- before the training -----------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise for unsupported settings before anything is built."""
        self._is_fitting = stage == "fit"
        if self._is_fitting:
            find_gated(pl_module, self._name)
            _check_strategy(trainer)
            _averaging_callbacks(trainer, before=self)
            self._max_epochs = trainer.max_epochs

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin or continue the search. The network already has its saved size, and the optimizers were made for it."""
        gated = find_gated(pl_module, self._name)
        check_trained(gated, trainer.optimizers)
        averages = [*self._averages, *_averaging_callbacks(trainer, before=self)]
        for average in averages:
            match_size(average, gated)
        if self._saved is None and self._search is not None:  # another call of fit continues the same search
            self._saved, self._seen_step = self._search.state_dict(), None
        self._search = Search(
            gated,
            self._length(trainer),
            optimizers=trainer.optimizers,
            averages=averages,
            calibrate=self._calibration,
            state=self._saved,
            **self._settings,
        )
        self._saved = self._compact = None

    def _length(self, trainer: Trainer) -> int:
        if self._steps is not None:
            return self._steps
        if self._saved is not None:  # querying the trainer would start its data loading before its state is restored
            return int(self._saved["search"]["steps"])
        return _all_steps(trainer, self._max_epochs)

    # -- during the training -----------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Prepare the network before the first of the batches whose gradients are accumulated."""
        if self._rng is not None:
            set_random_state(self._rng)
            self._rng = None
        if trainer.global_step == self._seen_step:
            return
        self._seen_step = trainer.global_step
        self.search.step()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record whether the epoch continues, for callbacks that save at this point."""
        self._is_mid_epoch = not trainer.is_last_batch

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Freeze the gates within the budget and extract the pruned model, if the search has made all its steps."""
        self._finish()

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the search for the trainer's checkpoints. The rest is in the network's own state."""
        return {
            "search": self._saved if self._search is None else self._search.state_dict(),
            "seen_step": self._seen_step,
            "is_mid_epoch": self._is_mid_epoch,
            "rng": random_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint. The trainer has already loaded the module, so the network has its saved size."""
        self._saved, self._seen_step = state_dict["search"], state_dict["seen_step"]
        if self._is_fitting and world_size() == 1:  # ranks must sample different gates
            set_random_state(state_dict["rng"])  # now, because the data order is sampled soon
            self._rng = state_dict["rng"] if state_dict["is_mid_epoch"] else None


def _classes(module: str, *names: str) -> tuple[Any, ...]:
    """Return these classes from the imported packages; older versions do not have all of them."""
    loaded = [sys.modules.get(f"{package}.{module}") for package in PACKAGES]
    return tuple(found for each in loaded for name in names if isinstance(found := getattr(each, name, None), type))


def _check_strategy(trainer: Trainer) -> None:
    sharded = _classes("strategies", "DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy")
    known = _classes("strategies", "SingleDeviceStrategy", "DDPStrategy")
    if isinstance(trainer.strategy, sharded) or not isinstance(trainer.strategy, known):
        raise InputError(
            f"a search cannot run with {type(trainer.strategy).__name__}.",
            hint="train on one device, or with strategy='ddp': gates need whole parameters.",
        )


def _averaging_callbacks(trainer: Trainer, before: SearchCallback) -> list[nn.Module]:
    """Return the averaged models of weight-averaging callbacks, which create them during setup."""
    kinds = _classes("callbacks", "WeightAveraging", "StochasticWeightAveraging")
    callbacks = list(trainer.callbacks)
    for place, callback in enumerate(callbacks):
        if isinstance(callback, kinds) and place > callbacks.index(before):
            raise InputError(
                f"{type(callback).__name__} comes after {type(before).__name__} in the list of callbacks.",
                hint="put it before: the pruned model is made from the averaged weights.",
            )
    copies = [callback._average_model for callback in callbacks if isinstance(callback, kinds)]
    return [copy for copy in copies if copy is not None]


def _all_steps(trainer: Trainer, max_epochs: int | None) -> int:
    """Return the optimizer steps of the whole training."""
    loop, epochs = trainer.fit_loop, trainer.fit_loop.max_epochs
    loop.max_epochs = max_epochs  # StochasticWeightAveraging has added one without steps
    try:
        steps = trainer.estimated_stepping_batches
    finally:
        loop.max_epochs = epochs
    if steps == float("inf"):
        raise InputError(
            "the number of training steps is unknown.",
            hint="set max_epochs or max_steps, or pass SearchCallback(steps=…).",
        )
    if not trainer.lightning_module.automatic_optimization and trainer.max_steps != -1:
        steps = min(steps, -(-trainer.max_steps // len(trainer.optimizers)))  # max_steps counts those of each optimizer
    return int(steps)
