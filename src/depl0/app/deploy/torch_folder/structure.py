"""How a compact network differs from the dense one that its constructor builds: ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from depl0.replacements.base import kinds, replace_module
from depl0.surgery.record import record_of, state_shapes

FORMAT, VERSION = "depl0-torch", 1


@dataclass(frozen=True)
class Structure:
    """What is to be done to a fresh dense network, in this order."""

    replaced: dict[str, dict[str, dict[str, Any]]]
    """kind of replacement -> module -> what rebuilds it"""
    identities: list[str]
    """norms that were folded into a constant"""
    shapes: dict[str, list[int]]
    """tensors that are smaller"""
    attributes: dict[str, dict[str, int | list[int]]]
    """sizes that layers know of themselves"""
    positions: dict[str, dict[str, list[int]]]
    """what is kept of buffers that are not saved"""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``config.json`` says of the structure; what is empty is left out."""
        return {key: value for key, value in vars(self).items() if value}


def structure_of(compact: nn.Module, dense: nn.Module) -> Structure:
    """Compare a compact network with a fresh dense one, in which modules of other classes are replaced first."""
    record = record_of(compact)
    assert record is not None, "the network was loaded from a folder of a compact network"
    replaced = _replaced(compact, dense)
    identities = _identities(compact, dense)
    saved, wanted = compact.state_dict(), state_shapes(dense)
    shapes, positions = {}, {}
    for name, shape in state_shapes(compact).items():
        if shape == wanted[name]:
            continue
        if name in saved:
            shapes[name] = list(shape)
        else:
            positions[name] = {str(dim): p.tolist() for (tensor, dim), p in record.positions.items() if tensor == name}
    return Structure(replaced, identities, shapes, _attributes(compact, dense), positions)


def _replaced(compact: nn.Module, dense: nn.Module) -> dict[str, dict[str, dict[str, Any]]]:
    """Replace modules of the dense network by the classes that work with fewer channels; say which, and how."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in kinds():
        for path, module in compact.named_modules():
            given = kind.arguments(module)
            if given is not None:
                found.setdefault(kind.kind, {})[path] = given
                kind.rebuild(dense, path, given)
    return found


def _identities(compact: nn.Module, dense: nn.Module) -> list[str]:
    before = dict(dense.named_modules())
    found = [
        path
        for path, module in compact.named_modules()
        if type(module) is nn.Identity and type(before[path]) is not nn.Identity
    ]
    for path in found:
        replace_module(dense, path, nn.Identity())
    return sorted(found)


def _attributes(compact: nn.Module, dense: nn.Module) -> dict[str, dict[str, int | list[int]]]:
    """Return the whole numbers in which modules differ, one or several: channels, groups, features, sizes of parts."""
    before = dict(dense.named_modules(remove_duplicate=False))
    differing = {}
    for path, module in compact.named_modules(remove_duplicate=False):
        other = vars(before[path])
        values = {
            name: list(value) if isinstance(value, (list, tuple)) else value
            for name, value in vars(module).items()
            if _is_numbers(value) and _is_numbers(other.get(name)) and other[name] != value
        }
        if values:
            differing[path] = values
    return differing


def _is_numbers(value: Any) -> bool:
    return type(value) is int or (isinstance(value, (list, tuple)) and all(type(number) is int for number in value))
