"""A search in the Hugging Face ``Trainer``: one callback.

The model holds the gated network and calls it in its ``forward``; the callback does what :class:`depl0.Search` does in
a loop of one's own. See docs/integrations.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from depl0._util.optional import check_installed
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gated.engine import HostState
from depl0.integrations._shared import check_trained, find_gated
from depl0.search.calibration import Calibration, Loss
from depl0.search.config import SearchChanges, SearchConfig
from depl0.search.search import Search
from depl0.search.state import SearchListener
from depl0.surgery.shrink import carry_over

check_installed("transformers", purpose="for depl0.integrations.transformers", extra="transformers")

from transformers import TrainerCallback  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402

TrainingArguments: TypeAlias = Any
TrainerState: TypeAlias = Any
TrainerControl: TypeAlias = Any


@final
class SearchCallback(TrainerCallback, ExportableState):
    """Takes the gates of a network to its budget while the Hugging Face Trainer trains it.

    ::

        class Classifier(nn.Module):
            def __init__(self, network, example):
                super().__init__()
                self.gated = depl0.attach(network, example, budget=0.5)

            def forward(self, pixels, labels):
                logits = self.gated(pixels)
                return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

        callback = SearchCallback(calibrate=batches, loss=nn.functional.cross_entropy)
        Trainer(model, arguments, train_dataset=data, optimizers=(adamw, None), callbacks=[callback]).train()
        depl0.info(callback.compact)

    The search takes one step for every step of the optimizer, also with accumulated gradients. Its state is part of
    the ``trainer_state.json`` of every checkpoint, and ``resume_from_checkpoint`` continues it. The optimizer goes
    along when the network becomes smaller; give it to the trainer together with this callback, or override
    ``create_optimizer``.

    Args:
        gated: the name of the model's attribute that holds the gated network; None: the only one there is.
        steps: the optimizer steps of the search; None: all that the trainer is going to make.
        calibrate: batches for first scores and statistics, as for :class:`depl0.Search`; they are moved to the device.
        loss: the loss of the task, where batches are pairs (inputs, targets).
        averages: modules that hold a copy of the network.
        config: how; without it, the defaults of :class:`depl0.SearchConfig`.
        listener: is told what happens.
        changes: fields of the configuration to set.
    """

    def __init__(
        self,
        gated: str | None = None,
        *,
        steps: int | None = None,
        calibrate: Calibration | Iterable[Any] | None = None,
        loss: Loss | None = None,
        averages: Iterable[nn.Module] = (),
        config: SearchConfig | None = None,
        listener: SearchListener | None = None,
        **changes: Unpack[SearchChanges],
    ) -> None:
        self._name, self._steps, self._averages = gated, steps, list(averages)
        self._calibration = Calibration.of(calibrate, loss)
        self._settings: dict[str, Any] = {"config": config, "listener": listener, **changes}
        self._search: Search | None = None
        self._before: HostState | None = None
        self._compact: nn.Module | None = None

    # -- what users ask ----------------------------------------------------------------------------------------------

    @property
    def search(self) -> Search:
        """Return the search of the training that is going on or over."""
        if self._search is None:
            raise InputError("there is no search before trainer.train.", hint="call trainer.train() first.")
        return self._search

    @property
    def compact(self) -> nn.Module:
        """Return the compact network; a search that was stopped early is finished now."""
        if self._compact is None:
            self._compact = self.search.finish()
        return self._compact

    # -- what the trainer calls --------------------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Remember the host that an optimizer was made for: a checkpoint may make it smaller."""
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        if model is None:  # the trainer makes it later, and its optimizer after it
            return
        if isinstance(model, GatedModel):
            raise InputError(
                "the Trainer cannot train a gated network by itself: it looks for names of arguments, a loss among the "
                "outputs, and a configuration of its own.",
                hint="hold the gated network in a module whose forward takes the inputs by name and returns a loss.",
            )
        gated = find_gated(model, self._name)
        self._before = gated.engine.host_state() if optimizer is not None else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the search, or continue it. The network has its saved size, and the optimizer fits."""
        optimizer = _plain(kwargs["optimizer"])
        gated = find_gated(kwargs["model"], self._name)
        shrunk = None if self._before is None else gated.engine.shrunk_since(self._before)
        if shrunk is not None:
            carry_over(optimizer, shrunk)
        check_trained(gated, [optimizer])
        saved = self._saved(args, state)
        self._search = Search(
            gated,
            self._steps if self._steps is not None else state.max_steps,
            optimizers=[optimizer],
            averages=self._averages,
            calibrate=self._calibration,
            state=saved,
            **self._settings,
        )
        _check_cuts(self._search, args)
        self._compact = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the network ready, before the first of the batches whose gradients are accumulated."""
        self.search.step()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Freeze the gates within the budget and extract the compact network, if the search has had its steps."""
        if self.search.done >= self.search.steps:
            self._compact = self.search.finish()

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what ``trainer_state.json`` keeps of the search; the model's own file has the rest."""
        search = None if self._search is None else _to_json(self._search.state_dict())
        return {"args": {}, "attributes": {"search_state": search}}

    def _saved(self, args: TrainingArguments, state: TrainerState) -> Any:
        """Return the search's state in the checkpoint that the trainer has loaded, if it has."""
        if args.restore_callback_states_from_checkpoint:
            raise InputError(
                "with restore_callback_states_from_checkpoint the trainer replaces callbacks, and the data of the "
                "search are lost.",
                hint="leave it off: the search restores itself.",
            )
        if state.global_step == 0:
            return None
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("search_state")
        if saved is None:
            raise InputError(
                f"the checkpoint at step {state.global_step} has no search in it.",
                hint="resume from a checkpoint that was made with this callback.",
            )
        return _from_json(saved)


def _plain(optimizer: Any) -> Any:
    """Return the optimizer itself where Accelerate has wrapped it."""
    from accelerate.optimizer import AcceleratedOptimizer

    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _check_cuts(search: Search, args: TrainingArguments) -> None:
    """Refuse what cannot go together with a network that becomes smaller."""
    if args.load_best_model_at_end and search.config.cut != "never":
        raise InputError(
            "load_best_model_at_end would load a larger network into one that has become smaller.",
            hint="leave it off (only the end of the search is within the budget), or pass cut='never'.",
        )


def _to_json(value: Any) -> Any:
    """Return numbers, texts, lists and mappings alone; tensors say so."""
    if isinstance(value, Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, Mapping):
        return {key: _to_json(each) for key, each in value.items()}
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"tensor", "dtype"}:
            return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
        return {key: _from_json(each) for key, each in value.items()}
    return value
