"""Build networks from a spec: built-in, from torchvision or timm, or from a user's module or file.

============================  ==========================================================
``resnet56``                  a network of :mod:`depl0.app.models`
``torchvision:resnet18``      an image classifier of torchvision, untrained
``timm:resnet18``             a network of timm, untrained (:mod:`depl0.app.models.weights`: trained)
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
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn

from depl0._util.optional import import_torchvision
from depl0._util.registry import Registry, did_you_mean, unknown
from depl0._util.user_code import load_callable, wanted, wrap_user_errors
from depl0.errors import InputError

LIBRARIES = {"torchvision": "torchvision.models", "timm": "timm"}
"""packages with networks, and the modules that have them"""
FORMS = "write torchvision:resnet18, timm:resnet18, my_package.nets:make or path/to/file.py:make."
ImageSize: TypeAlias = "int | tuple[int, int]"
"""side of square images, or height and width"""

# -- built-in networks -------------------------------------------------------------------------------------------------

Constructor = TypeVar("Constructor", bound=Callable[..., nn.Module])

MODELS: Registry[Callable[..., nn.Module]] = Registry("built-in model", FORMS)
"""All registered constructors by name."""


def register(constructor: Constructor) -> Constructor:
    """Register a constructor for `build` under the name of the function; use it as a decorator."""
    return MODELS.register(constructor.__name__, lambda it: it)(constructor)


def names() -> tuple[str, ...]:
    """Return the names that `build` accepts, in alphabetical order."""
    return MODELS.names()


def build(name: str, **kwargs: object) -> nn.Module:
    """Build the network called ``name``; keyword arguments are passed to its constructor.

    >>> build("resnet20", num_classes=100).linear
    Linear(in_features=64, out_features=100, bias=True)
    """
    return MODELS.find(name)(**kwargs)


# -- specs -------------------------------------------------------------------------------------------------------------


def image_size(height: int, width: int) -> ImageSize:
    """Return the ``image_size`` passed to callables: the side of square images, or (height, width).

    >>> image_size(8, 8), image_size(8, 6)
    (8, (8, 6))
    """
    return height if height == width else (height, width)


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
    if colon and library not in LIBRARIES:
        make = load_callable(spec, "model")
        arguments = make.wanted({**sizes, "pretrained": True} if pretrained else sizes)
        hint = "only num_classes, in_channels and image_size are passed; give the others a default."
        make.check_call(arguments, hint)
        return lambda: _checked(make(**arguments), spec)
    if num_classes is None or in_channels is None:
        raise InputError(
            f"model {spec!r} is built for images and a number of outputs; the data has other "
            f"{'targets' if num_classes is None else 'inputs'}.",
            hint="write a callable that builds the network for this data: path/to/file.py:make.",
        )
    if colon:
        return _library_factory(library, name, num_classes, in_channels)
    own = wanted(MODELS.find(spec), sizes)
    return lambda: build(spec, **own)


def check_spec(spec: str) -> None:
    """Raise InputError if a text cannot describe a network; the user's code is not imported."""
    where, colon, name = spec.rpartition(":")
    if colon and not (where and name):
        raise InputError(f"model {spec!r} must have a name on both sides of the colon.", hint=FORMS)
    if not colon and spec not in MODELS:
        error = unknown("built-in model", spec, names(), FORMS)
        for library in reversed(LIBRARIES):
            with contextlib.suppress(InputError):  # not installed, or without this network
                check_known(library, spec)
                error = InputError(f"there is no built-in model {spec!r}.", hint=f"did you mean {library}:{spec}?")
        raise error


def _library_factory(library: str, name: str, num_classes: int, in_channels: int) -> Callable[[], nn.Module]:
    check_known(library, name)
    if library == "torchvision" and in_channels != 3:
        raise InputError(
            f"torchvision:{name} takes images of 3 channels, but the data has {in_channels}.",
            hint=f"timm:{name} may exist and takes any number; or write a callable that changes the first layer.",
        )

    def make() -> nn.Module:
        with wrap_user_errors("model", f"{library}:{name}"):
            models = import_library(library)
            if library == "torchvision":
                return _checked(models.get_model(name, weights=None, num_classes=num_classes), name)
            network = models.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels)
            return _checked(network, name)

    return make


def check_known(library: str, name: str) -> None:
    """Raise if torchvision or timm does not have a network."""
    models = import_library(library)
    known = models.list_models() if library == "timm" else models.list_models(module=models)
    if name not in known and not (library == "timm" and models.is_model(name)):  # timm: also with a tag
        hint = did_you_mean(name, known) or f"{LIBRARIES[library]}.list_models() lists them."
        raise InputError(f"there is no {library} model called {name!r}.", hint=hint)


def import_library(package: str) -> Any:
    """Import the module of torchvision or timm that has the networks.

    Raises:
        InputError: the package is not installed or does not fit this torch.
    """
    try:
        with contextlib.suppress(ImportError):  # timm's own message is more specific
            import_torchvision()
        return import_module(LIBRARIES[package])
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


def _checked(network: object, spec: str) -> nn.Module:
    if not isinstance(network, nn.Module):
        raise InputError(f"model {spec!r} must return a torch.nn.Module, got a {type(network).__name__} instead.")
    return network
