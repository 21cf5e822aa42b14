"""A search in the Hugging Face ``Trainer``: one callback; and pruned models in the folders of Hugging Face.

The model holds the gated network and calls it in its ``forward``; the callback does what :class:`depl0.Search` does in
a custom training loop. See docs/integrations.md.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from depl0._util.optional import check_installed
from depl0.errors import FormatError, InputError
from depl0.gated import GatedModel
from depl0.gated.model import HostState
from depl0.host.network import first_line
from depl0.integrations._shared import SearchHolder, check_trained, find_gated
from depl0.search.search import Search
from depl0.surgery.extraction import carry_over
from depl0.surgery.files import load as depl0_load
from depl0.surgery.files import save as depl0_save
from depl0.surgery.hub import local_folder
from depl0.surgery.record import record_of

check_installed("transformers", purpose="for depl0.integrations.transformers", extra="transformers")

import transformers  # noqa: E402
from transformers import (  # noqa: E402
    AutoConfig,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    TrainerCallback,
)
from transformers.trainer_callback import ExportableState  # noqa: E402

TrainingArguments: TypeAlias = Any
TrainerState: TypeAlias = Any
TrainerControl: TypeAlias = Any


@final
class SearchCallback(SearchHolder, TrainerCallback, ExportableState):  # type: ignore[misc]
    """Prunes a gated network to its budget while the Hugging Face Trainer trains it.

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

    The search takes one step for every step of the optimizer, also with accumulated gradients. Its state is part of the
    ``trainer_state.json`` of every checkpoint, and ``resume_from_checkpoint`` continues it. The optimizer is adapted
    when the network becomes smaller; pass it to the trainer together with this callback, or override
    ``create_optimizer``.

    Args:
        gated: the name of the model's attribute that holds the gated network; None if there is only one.
        steps: the optimizer steps of the search; None: all steps of the trainer.
        calibrate: batches for first scores and statistics, as for :class:`depl0.Search`; they are moved to the device.
        loss: the loss of the task, if batches are pairs (inputs, targets).
        averages: modules that hold a copy of the network.
        config: configuration of the search; defaults to ``SearchConfig()``.
        changes: fields of the configuration to set.
    """

    _begins = "trainer.train()"
    _before: HostState | None = None

    # -- hooks of the trainer ----------------------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record the host that an optimizer was made for, because a checkpoint may make the host smaller."""
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        if model is None:  # the trainer creates the model later, and its optimizer after that
            return
        if isinstance(model, GatedModel):
            raise InputError(
                "the Trainer cannot train a gated network by itself: it looks for names of arguments, a loss among the "
                "outputs, and a configuration of its own.",
                hint="hold the gated network in a module whose forward takes the inputs by name and returns a loss.",
            )
        gated = find_gated(model, self._name)
        self._before = gated.host_state() if optimizer is not None else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin or continue the search. The network already has its saved size, and the optimizer matches it."""
        optimizer = _plain(kwargs["optimizer"])
        gated = find_gated(kwargs["model"], self._name)
        shrunk = None if self._before is None else gated.cut_since(self._before)
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
        """Prepare the network before the first of the batches whose gradients are accumulated."""
        self.search.step()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Freeze the gates within the budget and extract the pruned model, if the search has made all its steps."""
        self._finish()

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of the search for ``trainer_state.json``. The rest is in the model's own file."""
        search = None if self._search is None else _to_json(self._search.state_dict())
        return {"args": {}, "attributes": {"search_state": search}}

    def _saved(self, args: TrainingArguments, state: TrainerState) -> Any:
        """Return the search's state from the checkpoint that the trainer has loaded, if any."""
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
    """Return the optimizer inside Accelerate's wrapper, if there is one."""
    from accelerate.optimizer import AcceleratedOptimizer

    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _check_cuts(search: Search, args: TrainingArguments) -> None:
    """Raise for training arguments that do not support a network that becomes smaller."""
    if args.load_best_model_at_end and search.config.cut != "never":
        raise InputError(
            "load_best_model_at_end would load a larger network into one that has become smaller.",
            hint="leave it off (only the end of the search is within the budget), or pass cut='never'.",
        )


def _to_json(value: Any) -> Any:
    """Convert a value to numbers, strings, lists and mappings; tensors are marked as such."""
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


# -- folders -----------------------------------------------------------------------------------------------------------


def save_pretrained(compact: nn.Module, folder: str | os.PathLike[str], **kwargs: Any) -> Path:
    """Write a pruned network of transformers to a folder that can be pushed to the Hub.

    ``compact.save_pretrained(folder)`` does the same. The folder holds the files of :func:`depl0.save` and the
    configuration of the original model. Both :func:`load_pretrained` and ``AutoModel….from_pretrained(folder,
    trust_remote_code=True)`` open it. No pickle is written.

    Args:
        compact: a pruned ``PreTrainedModel``.
        folder: where to write; created if it does not exist.
        kwargs: arguments of the library's own ``save_pretrained``, which have no effect.

    Raises:
        InputError: ``compact`` is not a pruned model of transformers.
    """
    config = getattr(compact, "config", None)
    if (
        record_of(compact) is None
        or not isinstance(compact, PreTrainedModel)
        or not isinstance(config, PretrainedConfig)
    ):
        raise InputError(
            f"expected a pruned model of transformers, got {type(compact).__name__} instead.",
            hint="pass what depl0.prune, gated.extract() or search.finish() returned for a PreTrainedModel.",
        )
    target = Path(folder)
    depl0_save(compact, target)
    (target / "model.safetensors").unlink(missing_ok=True)
    new = copy.deepcopy(config)
    new.architectures = [type(compact).__name__]
    new.save_pretrained(target)
    _write_code(compact, config, target)
    if getattr(compact, "generation_config", None) is not None:
        compact.generation_config.save_pretrained(target)
    return target


def load_pretrained(source: str | os.PathLike[str], **kwargs: Any) -> nn.Module:
    """Return the network of a folder that :func:`save_pretrained` wrote, in evaluation mode.

    Args:
        source: the folder, or ``hf://OWNER/NAME`` on the Hub.
        kwargs: further arguments of the configuration: ``attn_implementation``, …; ``dtype`` converts the network.

    Raises:
        FormatError: the folder is damaged, or of a network that transformers does not have.
        DownloadError: it cannot be downloaded.
    """
    folder = local_folder(source)
    dtype = kwargs.pop("dtype", None)
    try:
        config = AutoConfig.from_pretrained(folder, **{"trust_remote_code": False, **kwargs})
        network: Any = getattr(transformers, config.architectures[0])
    except (OSError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(
            f"{folder} has no config.json that names a network of transformers: {first_line(error)}",
            hint="pass a folder that depl0.integrations.transformers.save_pretrained wrote.",
        ) from error
    config.update(getattr(config, "sizes_before_pruning", {}))  # in folders of earlier versions
    loaded = depl0_load(folder, lambda: network(config))
    if (folder / "generation_config.json").is_file():
        loaded.generation_config = GenerationConfig.from_pretrained(folder)
    return loaded if dtype in (None, "auto") else loaded.to(dtype)


_CODE_FILE = "modeling_depl0.py"
_CODE = '''"""Opens the pruned network of this folder. It needs depl0."""

from pathlib import Path

from transformers import {config}, {network}


class PrunedConfig({config}):
    """The configuration of the original network."""


class PrunedModel({network}):
    """A {network} whose layers have different widths."""

    config_class = PrunedConfig

    @classmethod
    def from_pretrained(cls, folder, *args, config=None, **kwargs):
        from depl0.integrations.transformers import load_pretrained

        known = {{name: kwargs[name] for name in ("dtype", "attn_implementation") if kwargs.get(name) is not None}}
        return load_pretrained(folder if Path(folder).is_dir() else f"hf://{{folder}}", **known)
'''


def _write_code(compact: nn.Module, config: Any, folder: Path) -> None:
    """Add a code file and its entry in config.json, so that Auto classes can open a folder."""
    kind = type(compact)
    autos = [name for name in dir(transformers) if name.startswith("AutoModel") and _opens(name, config, kind)]
    (folder / _CODE_FILE).write_text(_CODE.format(config=type(config).__name__, network=kind.__name__))
    file = folder / "config.json"
    settings = json.loads(file.read_text())
    code = _CODE_FILE.removesuffix(".py")
    settings["auto_map"] = dict.fromkeys(("AutoModel", *autos), f"{code}.PrunedModel")
    settings["auto_map"]["AutoConfig"] = f"{code}.PrunedConfig"
    file.write_text(json.dumps(settings, indent=2) + "\n")


def _opens(auto: str, config: Any, kind: type) -> bool:
    """Return True if this Auto class builds networks of this class."""
    mapping = getattr(getattr(transformers, auto), "_model_mapping", None)
    if mapping is None or type(config) not in mapping:
        return False
    found = mapping[type(config)]
    return kind in (found if isinstance(found, (tuple, list)) else (found,))
