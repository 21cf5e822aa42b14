"""Image size and normalisation of a network, from the configuration that its library stores with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from depl0.app.models.spec import check_known, import_library

BICUBIC = 3
"""Pillow's constant, which Hugging Face image processors also use"""

Fields = dict[str, Any]
"""recipe fields of the section [data]"""


def published_preprocessing(spec: str) -> Fields:
    """Return the evaluation preprocessing of published weights of timm or torchvision; empty if unknown."""
    library, _, name = spec.partition(":")
    if library not in ("timm", "torchvision"):
        return {}
    check_known(library, name)
    if library == "timm":
        config = import_library("timm").get_pretrained_cfg(name)
        return {} if config is None else _of_timm(config.to_dict())
    weights = import_library("torchvision").get_model_weights(name)
    made = weights.DEFAULT.transforms()
    crop, resized = made.crop_size[0], made.resize_size[0]
    return _fields((crop, crop), crop / resized, str(made.interpolation.value), made.mean, made.std)


def own_preprocessing(network: nn.Module) -> Fields:
    """Return the preprocessing stored in a network of timm or Hugging Face or in a part of it, or an empty dict."""
    for module in network.modules():
        config = getattr(module, "pretrained_cfg", None)
        if isinstance(config, Mapping) and "input_size" in config:
            return _of_timm(config)
        if hasattr(module, "config") and hasattr(module.config, "name_or_path"):
            found = _of_transformers(module.config)
            if found:
                return found
    return {}


def _of_timm(config: Mapping[str, Any]) -> Fields:
    _, height, width = config["input_size"]
    interpolation = str(config.get("interpolation", ""))
    return _fields((height, width), config.get("crop_pct"), interpolation, config.get("mean"), config.get("std"))


def _of_transformers(config: Any) -> Fields:
    """Return the settings of the image processor beside a model's files, or else those of its configuration."""
    transformers: Any = sys.modules["transformers"]
    side = getattr(config, "image_size", None)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(config.name_or_path, local_files_only=True)
    except (OSError, ValueError, ImportError):  # no processor, or not one for images
        sides = (side, side) if isinstance(side, int) else side
        return {"image_size": tuple(sides)} if isinstance(sides, (tuple, list)) else {}
    size, crop = dict(processor.size), dict(getattr(processor, "crop_size", None) or {})
    resized: Any = [size.get(side, size.get("shortest_edge")) for side in ("height", "width")]
    cuts = bool(getattr(processor, "do_center_crop", False)) and "height" in crop
    final = (crop["height"], crop["width"]) if cuts else tuple(resized)
    if not all(isinstance(number, int) for number in (*final, *resized)):
        return {}
    interpolation = "bicubic" if int(getattr(processor, "resample", 0) or 0) == BICUBIC else "bilinear"
    return _fields(final, final[0] / resized[0], interpolation, processor.image_mean, processor.image_std)


def _fields(sides: tuple[int, int], crop_share: float | None, interpolation: str, mean: Any, std: Any) -> Fields:
    found: Fields = {"image_size": sides, "interpolation": "bicubic" if interpolation == "bicubic" else "bilinear"}
    if crop_share is not None:
        found["crop_share"] = min(float(crop_share), 1.0)
    if mean is not None and std is not None and len(mean) == len(std) == 3:
        found |= {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
    return found
