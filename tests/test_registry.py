"""Names, and what is said of a name that is none."""

from __future__ import annotations

import abc

import pytest

from depl0._util.registry import Registry, did_you_mean, nearest, unknown
from depl0.errors import InputError


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> float:
        """Return the area."""


class Square(Shape):
    def area(self) -> float:
        return 1.0


class Disc(Shape):
    def area(self) -> float:
        return 3.14


def shapes() -> Registry[Shape]:
    registry: Registry[Shape] = Registry("shape", advice="a square will do.")
    assert registry.register("square", lambda kind: kind())(Square) is Square
    return registry


def test_it_is_a_mapping() -> None:
    registry = shapes()
    registry.register("disc", lambda kind: kind())(Disc)
    assert isinstance(registry["square"], Square) and registry.find("disc") is registry["disc"]
    assert (list(registry), registry.names(), len(registry)) == (["square", "disc"], ("disc", "square"), 2)
    assert "cube" not in registry and registry.get("cube") is None
    with pytest.raises(KeyError):
        registry["cube"]


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError) as caught:
        shapes().find("sqare")
    assert str(caught.value) == "The shape must be one of 'square', got 'sqare' instead.\nhint: did you mean square?"
    with pytest.raises(InputError, match="hint: a square will do"):
        shapes().find("x")


def test_names_that_are_taken_are_refused() -> None:
    registry = shapes()
    with pytest.raises(InputError, match=r"Shape 'square' is already registered, by .*test_registry\.Square"):
        registry.register("square", lambda kind: kind())(Disc)
    assert list(registry) == ["square"] and type(registry["square"]) is Square


def test_the_same_class_again_is_a_reloaded_module() -> None:
    registry = shapes()
    before = registry["square"]
    registry.register("square", lambda kind: kind())(Square)
    assert registry["square"] is not before


def test_case_does_not_count() -> None:
    assert nearest("RESNET", ["ResNet", "vgg"]) == ["ResNet"]
    assert did_you_mean("vgh", ["ResNet", "VGG"]) == "did you mean VGG?"
    assert did_you_mean("transformer", ["vgg"]) is None
    assert unknown("model", 3, ["vgg"]).hint is None
