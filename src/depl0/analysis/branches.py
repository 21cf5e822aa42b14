"""Branches in a network's code: ``if x.shape[0] > 16`` has another path for larger batches.

Only what is run can be recorded and compared, and no example takes every branch. The code says with which numbers it
compares sizes, so inputs on the other side of such a number can be tried as well; and :func:`recorded_path` tells
which way an input goes.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0.host.calls import Call, CallRecorder

_SIZES = re.compile(r"\.shape\b|\.size\(|\blen\(")
_NUMBER_OF_DIMENSIONS = re.compile(r"\blen\([\w.]+(\.shape|\.size\(\))\)")
_LENGTH, _INDEX = re.compile(r"\blen\("), re.compile(r"\.(?:shape\[|size\()(-?\d+)")
_LARGEST = 4096


class Bounds(NamedTuple):
    """Numbers that code compares with the batch, and with the sizes of maps."""

    batches: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def compared_sizes(model: nn.Module) -> Bounds:
    """Return the whole numbers with which the code of a network's modules compares sizes of tensors."""
    found: set[tuple[str, int]] = set()
    seen: set[type] = set()
    for module in model.modules():
        if type(module).__module__.startswith("torch.nn."):
            continue
        if type(module) not in seen or _has_numbers(module):
            seen.add(type(module))
            found.update(bound for tree in _functions(type(module)) for bound in _bounds(tree, module))
    numbers = sorted((kind, number) for kind, number in found if 0 < number < _LARGEST)
    return Bounds(*(tuple(number for kind, number in numbers if kind == which) for which in ("batch", "size")))


def _has_numbers(module: nn.Module) -> bool:
    return any(type(value) is int for value in vars(module).values())


_TREES: dict[type, tuple[ast.AST, ...]] = {}


def _functions(kind: type) -> tuple[ast.AST, ...]:
    """Return the methods of a class that look at sizes, as syntax trees."""
    if kind not in _TREES:
        _TREES[kind] = tuple(_parsed(kind))
    return _TREES[kind]


def _parsed(kind: type) -> Iterator[ast.AST]:
    for cls in kind.__mro__:
        if cls is nn.Module or cls.__module__.startswith("torch."):
            break
        for value in vars(cls).values():
            if not inspect.isfunction(value) or value.__name__ == "__init__":
                continue
            try:
                source = textwrap.dedent(inspect.getsource(value))
                if _is_size(source):
                    yield ast.parse(source)
            except (OSError, TypeError, SyntaxError):  # typed at a prompt, or made by a decorator
                continue


def _bounds(tree: ast.AST, module: nn.Module) -> Iterator[tuple[str, int]]:
    known = _named_sizes(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or len(node.comparators) != 1:
            continue
        left, right = node.left, node.comparators[0]
        for one, other in ((left, right), (right, left)):
            number = _value(other, module)
            if number is not None:
                kinds = set(_kinds(ast.unparse(one))).union(*(known.get(name, ()) for name in _names(one)))
                yield from ((kind, number) for kind in kinds)


def _named_sizes(tree: ast.AST) -> dict[str, set[str]]:
    """Return the names that code gives to sizes: ``n, c, h, w = x.shape``."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        text = ast.unparse(node.value)
        for target in node.targets:
            names = [name.id for name in ast.walk(target) if isinstance(name, ast.Name)]
            whole = text.endswith((".shape", ".size()")) and isinstance(target, ast.Tuple)
            for place, name in enumerate(names):
                kinds = ("batch" if place == 0 else "size",) if whole else _kinds(text)
                found.setdefault(name, set()).update(kinds)
    return found


def _kinds(text: str) -> tuple[str, ...]:
    """Say what an expression may be the size of: the batch, a map, either of them, or nothing of the kind."""
    if not _is_size(text):
        return ()
    indices = {int(index) for index in _INDEX.findall(text)}
    if _LENGTH.search(text) or indices == {0}:
        return ("batch",)
    return ("size",) if indices and 0 not in indices else ("batch", "size")


def _is_size(text: str) -> bool:
    return _SIZES.search(_NUMBER_OF_DIMENSIONS.sub("", text)) is not None


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _value(node: ast.AST, module: nn.Module) -> int | None:
    """Return the number that an expression stands for: a literal, or an attribute of the module."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        value = vars(module).get(node.attr)
        return value if type(value) is int else None
    return None


_SIZES_AND_MODES = {"__get__", "size", "dim", "__repr__", "__hash__", "numel", "stride", "is_floating_point",
                    "_set_grad_enabled"}  # fmt: skip


@contextmanager
def recorded_path(network: nn.Module) -> Iterator[list[tuple[Any, ...]]]:
    """Give a list that fills with the functions of torch that are called, in order; sizes and indices do not count."""
    steps: list[tuple[Any, ...]] = []

    def note(call: Call) -> None:
        if call.name not in _SIZES_AND_MODES:
            steps.append((call.name, *map(_argument, pytree.tree_leaves((call.args, dict(call.kwargs))))))

    with CallRecorder(network, before=note):
        yield steps


def _argument(leaf: Any) -> Any:
    """Return what distinguishes an argument: its value where that is no size."""
    if isinstance(leaf, Tensor):
        return leaf.dim()
    return leaf if isinstance(leaf, (float, str, bool)) or leaf is None else type(leaf).__name__
