"""Build networks from a spec: built-in, from torchvision or timm, or from a user's module or file.

============================  ==========================================================
``resnet56``                  a network of :mod:`depl0.app.models`
``torchvision:resnet18``      an image classifier of torchvision, untrained
``timm:resnet18``             a network of timm, untrained (:mod:`depl0.app.models.pretrained`: trained)
``my_package.nets:make``      a callable of a module that can be imported
``path/to/file.py:make``      a callable of a file
============================  ==========================================================

A callable receives those of ``num_classes``, ``in_channels`` and ``image_size`` that its signature names, and
``pretrained=True`` if trained weights are requested and its signature names it. ``image_size`` is a pair (height,
width) if images are not square. ``num_classes`` is unknown for data without classes or target vectors (label maps,
say), and is then not passed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType

import torch
from torch import nn

from depl0._util.optional import import_torchvision
from depl0._util.registry import did_you_mean, unknown
from depl0._util.user_code import load_callable, wanted, wrap_user_errors
from depl0.app.models import registry
from depl0.errors import InputError

FORMS = "write torchvision:resnet18, timm:resnet18, my_package.nets:make or path/to/file.py:make."


ImageSize = int | tuple[int, int]
"""side of square images, or height and width"""


def image_size(height: int, width: int) -> ImageSize:
    """Return the ``image_size`` passed to callables: the side of square images, or (height, width).

    >>> image_size(8, 8), image_size(8, 6)
    (8, (8, 6))
    """
    return height if height == width else (height, width)


def build_model(spec: str, num_classes: int | None, in_channels: int, image_size: ImageSize) -> nn.Module:
    """Build the network that ``spec`` describes, for these images and classes.

    >>> build_model("lenet5", num_classes=7, in_channels=1, image_size=28).fc2
    Linear(in_features=500, out_features=7, bias=True)
    """
    return factory(spec, num_classes, in_channels, image_size)()


def factory(
    spec: str,
    num_classes: int | None,
    in_channels: int | None,
    image_size: ImageSize | None,
    pretrained: bool = False,
) -> Callable[[], nn.Module]:
    """Return a function without arguments that builds a new network at every call.

    ``in_channels`` and ``image_size`` are None if the input of the network is not one image. ``pretrained`` is passed
    to user callables whose signature names it.

    The user's module or file is imported here, so that an error in it is raised before anything else is done.
    """
    check_spec(spec)
    offered = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    sizes: dict[str, object] = {key: value for key, value in offered.items() if value is not None}
    library, colon, name = spec.partition(":")
    if not colon or library in ("torchvision", "timm"):
        if num_classes is None or in_channels is None:
            raise InputError(
                f"model {spec!r} is built for images and a number of outputs; the data has "
                + ("other targets." if num_classes is None else "other inputs."),
                hint="write a callable that builds the network for this data: path/to/file.py:make.",
            )
        if colon:
            make = _torchvision_factory if library == "torchvision" else _timm_factory
            return make(name, num_classes, in_channels)
        arguments = wanted(registry.MODELS.find(spec), sizes)
        return lambda: registry.build(spec, **arguments)
    return _user_factory(spec, {**sizes, "pretrained": True} if pretrained else sizes)


def check_spec(spec: str) -> None:
    """Raise InputError if a text cannot describe a network; the user's code is not imported."""
    where, colon, name = spec.rpartition(":")
    if not colon:
        if spec not in registry.MODELS:
            if published := _published(spec):
                raise InputError(f"there is no built-in model {spec!r}.", hint=f"did you mean {published}?")
            raise unknown("built-in model", spec, registry.names(), FORMS)
    elif not where or not name:
        raise InputError(
            f"model {spec!r} must have a name on both sides of the colon.",
            hint=FORMS,
        )


def _torchvision_factory(name: str, num_classes: int, in_channels: int) -> Callable[[], nn.Module]:
    check_known("torchvision", name)
    models = import_library("torchvision", "torchvision.models")
    if in_channels != 3:
        raise InputError(
            f"torchvision:{name} takes images of 3 channels, but the data has {in_channels}.",
            hint=f"timm:{name} may exist and takes any number; or write a callable that changes the first layer.",
        )

    def make() -> nn.Module:
        with wrap_user_errors("model", f"torchvision:{name}"):
            return _checked(models.get_model(name, weights=None, num_classes=num_classes), f"torchvision:{name}")

    return make


def _timm_factory(name: str, num_classes: int, in_channels: int) -> Callable[[], nn.Module]:
    check_known("timm", name)
    timm = import_library("timm", "timm")

    def make() -> nn.Module:
        with wrap_user_errors("model", f"timm:{name}"):
            network = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels)
            return _checked(network, f"timm:{name}")

    return make


def check_known(library: str, name: str) -> None:
    """Raise if torchvision or timm does not have a network."""
    if library == "timm":
        timm = import_library("timm", "timm")
        if not timm.is_model(name):
            raise _unknown("timm model", name, timm.list_models(), "timm.list_models() lists them.")
        return
    models = import_library("torchvision", "torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        raise _unknown("torchvision model", name, known, "torchvision.models.list_models() lists them.")


def import_library(package: str, module: str) -> ModuleType:
    """Import a module for the networks of a package, or raise an error that names the missing package."""
    try:
        with contextlib.suppress(ImportError):  # timm's own message is more specific
            import_torchvision()
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise InputError(
            f"{package} networks need {missing}, which is not installed.", f"pip install {missing}"
        ) from error
    except (ImportError, RuntimeError, OSError) as error:
        # A torchvision compiled for another torch fails with "operator torchvision::nms does not exist".
        raise InputError(
            f"{package} is installed but cannot be imported beside torch {torch.__version__}: {error}.",
            hint="install the torchvision that was built for this torch; pytorch.org lists which fit together.",
        ) from error


def _user_factory(spec: str, sizes: dict[str, object]) -> Callable[[], nn.Module]:
    make = load_callable(spec, "model")
    arguments = make.wanted(sizes)
    make.check_call(arguments, "only num_classes, in_channels and image_size are passed; give the others a default.")
    return lambda: _checked(make(**arguments), spec)


def _checked(network: object, spec: str) -> nn.Module:
    if not isinstance(network, nn.Module):
        raise InputError(f"model {spec!r} must return a torch.nn.Module, got a {type(network).__name__} instead.")
    return network


def _published(name: str) -> str | None:
    """Return the spec of a network of torchvision or timm that has this name."""
    for library in ("torchvision", "timm"):
        with contextlib.suppress(InputError):  # not installed, or without this network
            check_known(library, name)
            return f"{library}:{name}"
    return None


def _unknown(what: str, name: str, known: Iterable[str], advice: str) -> InputError:
    return InputError(f"there is no {what} called {name!r}.", hint=did_you_mean(name, known) or advice)
