"""Image size and normalisation of a network, from the configuration that its library stores with it."""

from __future__ import annotations

from typing import Any

from depl0.app.models.spec import check_known, import_library

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
        if config is None:
            return {}
        return _fields(config.input_size[1:], config.crop_pct, config.interpolation, config.mean, config.std)
    weights = import_library("torchvision").get_model_weights(name)
    made = weights.DEFAULT.transforms()
    crop, resized = made.crop_size[0], made.resize_size[0]
    return _fields((crop, crop), crop / resized, str(made.interpolation.value), made.mean, made.std)


def _fields(sides: tuple[int, int], crop_share: float | None, interpolation: str, mean: Any, std: Any) -> Fields:
    found: Fields = {"image_size": sides, "interpolation": "bicubic" if interpolation == "bicubic" else "bilinear"}
    if crop_share is not None:
        found["crop_share"] = min(float(crop_share), 1.0)
    if mean is not None and std is not None and len(mean) == len(std) == 3:
        found |= {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}
    return found
