"""Prune a YOLO of Ultralytics, train it with Ultralytics' own trainer, and save it in Ultralytics' own format.

Ultralytics has a different licence (AGPL-3.0). depl0 neither depends on it nor imports it, and contains none of its
code. Everything is accessed through the ``YOLO`` object that is passed in. See docs/guides/detection.md.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from depl0.config import OtherGateChanges
from depl0.errors import InputError
from depl0.host.copies import isolated_deepcopy
from depl0.search.one_shot import prune as prune_network
from depl0.surgery.record import forget, record_of, remember

YOLO: TypeAlias = Any
"""``ultralytics.YOLO``, of any task"""

SIZE = 64
"""side of the image that a network is analysed on; it changes the analysis time, but hardly the fractions of the cost
"""


def prune(
    yolo: YOLO,
    data: Iterable[Tensor],
    *,
    budget: float = 0.5,
    recover: Any = "auto",
    lr: float = 0.01,
    quiet: bool = False,
    size: int = SIZE,
    **changes: Unpack[OtherGateChanges],
) -> YOLO:
    """Return a YOLO with a pruned model, by :func:`depl0.prune`. The given one is not modified.

    ``val()``, ``predict()`` and ``export()`` of the result work as usual; train it with :func:`train`, save it with
    :func:`save`. ``depl0.info(result.model)`` shows what was pruned.

    Args:
        yolo: a trained ``YOLO``, or one built from a yaml file.
        data: batches of images (batch, 3, h, w) with values in [0, 1], without labels, as returned by :func:`images`.
        budget: the fraction of the cost to keep.
        recover: as for :func:`depl0.prune`.
        lr: the learning rate of the recovery.
        quiet: show no progress line.
        size: height and width of the image that the network is analysed on.
        changes: further fields of :class:`depl0.GateConfig`: ``of``, ``groups``, ``round_to``, …

    Raises:
        InputError: an argument is invalid, or the budget cannot be reached.

    Example::

        yolo = YOLO("best.pt")
        small = prune(yolo, images(yolo, "images/train"), budget=0.5)
        train(small, data="data.yaml", epochs=20)
        save(small, "small.pt")
    """
    network = _trainable_copy(_network_of(yolo))
    compact = prune_network(
        network, _example(network, size), data=data, budget=budget, recover=recover, lr=lr, quiet=quiet, **changes
    )
    return _with_network(yolo, compact)


@torch.no_grad()
def images(yolo: YOLO, source: Any, *, count: int = 64, batch: int = 16, imgsz: int | None = None) -> list[Tensor]:
    """Return batches of images as Ultralytics passes them to a network: resized, padded, with values in [0, 1].

    Args:
        yolo: the YOLO whose preprocessing is used.
        source: as for ``YOLO.predict``: a folder, a list of files, …
        count: largest number of images.
        batch: images in a batch.
        imgsz: their height and width; None: the training size stored in the network's file, or else 640.

    Raises:
        InputError: the source has no images.
    """
    found: list[Tensor] = []
    done = 0
    imgsz = imgsz or yolo.overrides.get("imgsz") or 640
    reader = _with_network(yolo, isolated_deepcopy(_network_of(yolo)))
    reader.model.register_forward_pre_hook(lambda _, args: found.append(args[0].detach().float().cpu()))
    for done, _ in enumerate(reader.predict(source, imgsz=imgsz, rect=False, stream=True, verbose=False), 1):
        if done == count:
            break
    if not done:
        raise InputError(f"{source!r} has no images.", hint="pass a folder of images, or a list of their paths.")
    return list(torch.cat(found[-done:]).split(batch))  # a predictor warms up first


def train(yolo: YOLO, **arguments: Any) -> Any:
    """Train a pruned model with Ultralytics' own trainer; return its metrics.

    ``yolo.train()`` would silently rebuild the original model from its yaml. This function trains the network in
    ``yolo``. Afterwards ``yolo`` holds the best network, as after ``yolo.train()``.

    Args:
        yolo: the result of :func:`prune`, or a YOLO opened from a file written by :func:`save`.
        arguments: for ``YOLO.train``: ``data``, ``epochs``, ``imgsz``, …

    Raises:
        InputError: the data set has another number of classes than the network, several devices are requested, or the
            network's batch norms are folded.
    """
    network = _network_of(yolo)
    if callable(is_fused := getattr(network, "is_fused", None)) and is_fused():
        raise InputError(
            "the network's batch norms are folded into its convolutions (val() and predict() of Ultralytics do that).",
            hint="open the original model's file again, and prune it before val() or predict().",
        )
    device = arguments.get("device")
    if (isinstance(device, (list, tuple)) and len(device) > 1) or (isinstance(device, str) and "," in device):
        raise InputError(
            f"device must be one device, got {device!r} instead.",
            hint="with several devices Ultralytics starts new processes, which would build the original model.",
        )
    record = record_of(network)
    metrics = yolo.train(trainer=_trainer(yolo, _for_ultralytics(network)), **arguments)
    if record is not None:
        remember(yolo.model, record)
    return metrics


def _trainer(yolo: YOLO, network: nn.Module) -> type:
    """Return the task's trainer, modified to train this network."""
    base: Any = yolo.task_map[yolo.task]["trainer"]

    class CompactTrainer(base):  # type: ignore[misc]
        def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> nn.Module:
            names = getattr(network, "names", None)
            if names is not None and len(names) != self.data["nc"]:
                raise InputError(
                    f"the network has {len(names)} classes, the data set has {self.data['nc']}.",
                    hint="train the original model on this data set first, or build it with as many classes (nc in its "
                    "yaml).",
                )
            return isolated_deepcopy(network)

    return CompactTrainer


def save(yolo: YOLO, path: str | os.PathLike[str]) -> None:
    """Write a file that ``YOLO(path)`` of an unmodified Ultralytics opens, by Ultralytics' own ``save``.

    It is a pickle in half precision: open such files only from people you trust. depl0 itself neither writes nor reads
    pickles; ``depl0.save(yolo.model, folder)`` stores a pruned model exactly, without one.

    Raises:
        InputError: the network contains a module of depl0, which Ultralytics alone cannot open.
    """
    network = _network_of(yolo)
    _with_network(yolo, _for_ultralytics(network)).save(os.fspath(path))


# -- networks ----------------------------------------------------------------------------------------------------------


def _network_of(yolo: YOLO) -> nn.Module:
    network = getattr(yolo, "model", None)
    if isinstance(yolo, nn.Module) and isinstance(network, nn.Module) and hasattr(yolo, "task_map"):
        return network
    raise InputError(
        f"Expected a YOLO of ultralytics with a PyTorch network, got {type(yolo).__name__} instead.",
        hint="pass YOLO('yolo11n.pt') or YOLO('yolo11n.yaml').",
    )


def _trainable_copy(network: nn.Module) -> nn.Module:
    """Return a trainable copy, because the parameters of a loaded file do not require gradients."""
    copied = isolated_deepcopy(network).float()
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(".dfl" not in name)  # the weights of the distance bins, which are never trained
    return copied


def _for_ultralytics(network: nn.Module) -> nn.Module:
    """Return a copy without any objects of depl0."""
    copied = isolated_deepcopy(network)
    forget(copied)
    foreign = [name for name, module in copied.named_modules() if type(module).__module__.partition(".")[0] == "depl0"]
    if foreign:
        raise InputError(
            f"{foreign[0]} is a module of depl0, which Ultralytics could not open without it.",
            hint="prune without remove_blocks, or leave that layer's group out; depl0.save keeps such networks.",
        )
    return copied


def _with_network(yolo: YOLO, network: nn.Module) -> YOLO:
    """Return another YOLO, with this network."""
    new = copy.copy(yolo)
    new._modules, new.overrides = dict(yolo._modules), dict(yolo.overrides)
    new.predictor = new.trainer = None
    new.model = network
    if not getattr(type(new), "keeps_norms", False):
        new.__class__ = _keeping_norms(type(new))
    return new


def _keeping_norms(base: Any) -> type:
    """Return a YOLO whose ``val`` and ``predict`` work on a copy, because they fold batch norms in place."""

    class CompactYOLO(base):  # type: ignore[misc]
        model: Any
        keeps_norms = True

        def val(self, *args: Any, **kwargs: Any) -> Any:
            return self.on_copy(super().val, args, kwargs)

        def predict(self, *args: Any, **kwargs: Any) -> Any:
            return self.on_copy(super().predict, args, kwargs)

        def on_copy(self, call: Any, args: Any, kwargs: Any) -> Any:
            network = self.model
            self.model = isolated_deepcopy(network)
            try:
                return call(*args, **kwargs)
            finally:
                self.model = network

    CompactYOLO.__name__ = base.__name__
    return CompactYOLO


def _example(network: nn.Module, size: int) -> Tensor:
    first = next(p for p in network.parameters() if p.dim() == 4)
    return torch.rand(1, first.shape[1], size, size, generator=torch.Generator().manual_seed(0)).to(first.device)
