"""Effect of pruning on a classifier's predictions: correct ones by class, and images whose prediction changed."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from depl0.app.data import DataInfo
from depl0.app.tasks.classification import Classification, class_scores
from depl0.app.training.session import Session
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call

MAX_CLASSES = 1000
THUMBNAIL = 64
"""pixels of the longer side"""


@torch.no_grad()
def compare_answers(session: Session, dense: nn.Module | None, compact: nn.Module) -> dict[str, Any] | None:
    """Return the content of ``answers.json``; None if the task is not classification, or has too many classes.

    Args:
        session: the run.
        dense: the network that was pruned, or None if it was not trained. The figures by class are then those of the
            dense network trained beside the search, if there is one, and no predictions are compared.
        compact: the pruned network.
    """
    info, accelerator = session.data.info, session.accelerator
    if not _has_classes(session):
        return None
    classes, most = int(info.num_classes or 0), session.recipe.run.examples
    if info.image_shape is None:
        most = 0
    counts = torch.zeros(classes, 4, device=accelerator.device)  # images, right dense, right compact, changed
    examples: list[dict[str, Any]] = []
    taken: Counter[int] = Counter()
    seen = 0
    with evaluation_mode(compact, *([] if dense is None else [dense])):
        for images, labels in session.data.for_choices.epoch(0):
            after = _answers(accelerator, compact, images)
            before = after if dense is None else _answers(accelerator, dense, images)
            changed = before != after
            columns = [torch.ones_like(changed), before == labels, after == labels, changed]
            counts.index_add_(0, labels, torch.stack(columns, 1).to(counts.dtype))
            for place in changed.nonzero().flatten().tolist():
                label = int(labels[place])
                if len(examples) < most and taken[label] < max(1, most // classes):
                    taken[label] += 1
                    answer = {"label": label, "dense": int(before[place]), "compact": int(after[place])}
                    examples.append({"number": seen + place, **answer, "picture": picture(images[place], info)})
            seen += len(labels)
    totals = accelerator.reduce(counts, reduction="sum")
    trained_beside: list[int] | list[None] = session.state.dense_right or [None] * classes
    return {
        "split": session.data.split,
        "images": int(totals[:, 0].sum()),
        "changed": None if dense is None else int(totals[:, 3].sum()),
        "classes": [
            {
                "name": str(label) if info.class_names is None else info.class_names[label],
                "images": int(row[0]),
                "dense": trained_beside[label] if dense is None else int(row[1]),
                "compact": int(row[2]),
            }
            for label, row in enumerate(totals.tolist())
        ],
        "examples": examples,
    }


@torch.no_grad()
def right_in_classes(session: Session, network: nn.Module) -> list[int] | None:
    """Return the number of correct predictions in each class; None if the task is not classification."""
    if not _has_classes(session):
        return None
    accelerator = session.accelerator
    right = torch.zeros(int(session.data.info.num_classes or 0), device=accelerator.device)
    with evaluation_mode(network):
        for images, labels in session.data.for_choices.epoch(0):
            right.index_add_(0, labels, (_answers(accelerator, network, images) == labels).to(right.dtype))
    return [int(number) for number in accelerator.reduce(right, reduction="sum").tolist()]


def _has_classes(session: Session) -> bool:
    return isinstance(session.task, Classification) and 1 < (session.data.info.num_classes or 0) <= MAX_CLASSES


def _answers(accelerator: Any, network: nn.Module, images: Any) -> Tensor:
    with accelerator.autocast():
        return class_scores(call(network, images)).argmax(1)


def picture(image: Tensor, info: DataInfo) -> str | None:
    """Return a small image (channels, height, width) as a PNG file in base64; None if the channels are not colours."""
    if image.shape[0] not in (1, 3):
        return None
    image = image.float().cpu()
    if info.mean is not None and info.std is not None:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (info.mean, info.std))
        image = image * std + mean
    else:  # normalised by user code: the darkest value becomes black
        image = (image - image.min()) / (image.max() - image.min()).clamp(min=1e-9)
    height, width = image.shape[1:]
    if max(height, width) > THUMBNAIL:
        scale = THUMBNAIL / max(height, width)
        sides = max(1, round(scale * height)), max(1, round(scale * width))
        image = functional.interpolate(image[None], sides, mode="bilinear", antialias=True)[0]
    pixels = (255 * image).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return base64.b64encode(_png(pixels)).decode()


def _png(pixels: Tensor) -> bytes:
    """Return uint8 pixels (height, width, 1 or 3) as a PNG file."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
