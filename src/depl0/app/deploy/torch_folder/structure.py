"""How a compact network differs from the dense one that its constructor builds: ``config.json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from depl0.replacements.attentions import AnyPruned, in_windows, pruned_attention
from depl0.replacements.constant import ConstantLayer, replace_module
from depl0.replacements.full_width import places_of, spec_of
from depl0.replacements.norm import CountedNorm
from depl0.replacements.standardised import StandardisedConv2d
from depl0.surgery.record import record_of, state_shapes

FORMAT, VERSION = "depl0-torch", 1


@dataclass(frozen=True)
class Structure:
    """What is to be done to a fresh dense network."""

    shapes: dict[str, list[int]]
    """tensors that are smaller"""
    attributes: dict[str, dict[str, int | list[int]]]
    """sizes that layers know of themselves"""
    constants: dict[str, dict[str, Any]]
    """layers that have become constants"""
    identities: list[str]
    """norms that were folded into a constant"""
    positions: dict[str, dict[str, list[int]]]
    """what is kept of buffers that are not saved"""
    norms: dict[str, dict[str, Any]]
    """norms that go on counting removed channels"""
    attentions: dict[str, dict[str, Any]]
    """attention with widths of its own"""
    windows: dict[str, dict[str, Any]]
    """attention in windows of an image, with widths of its own"""
    standardised: dict[str, dict[str, Any]]
    """convolutions for whose standardised filters removed weights still count"""
    full_width: dict[str, dict[str, Any]]
    """small modules that look at all channels at once, and get zeros in the places of removed ones"""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``config.json`` says of the structure; what is empty is left out."""
        return {key: value for key, value in vars(self).items() if value}


def structure_of(compact: nn.Module, dense: nn.Module) -> Structure:
    """Compare a compact network with a fresh dense one, in which modules of other classes are replaced first."""
    replaced = _replaced(compact, dense)
    record = record_of(compact)
    assert record is not None, "the network was loaded from a folder of a compact network"
    removed = {removal.layer for removal in record.removals}
    identities = [removal.norm for removal in record.removals if removal.norm is not None]
    gone = removed | set(identities)
    saved, wanted, found = compact.state_dict(), state_shapes(dense), state_shapes(compact)
    shapes, positions = {}, {}
    for name, shape in found.items():
        if name.rpartition(".")[0] in gone or shape == wanted[name]:
            continue
        if name in saved:
            shapes[name] = list(shape)
        else:
            kept = {str(dim): p.tolist() for (tensor, dim), p in record.positions.items() if tensor == name}
            positions[name] = kept
    modules = dict(compact.named_modules(remove_duplicate=False))
    constants = {path: _constant(modules[path]) for path in sorted(removed)}
    attributes = _attributes(compact, dense, gone)
    at_full_width = _at_full_width(compact)
    return Structure(shapes, attributes, constants, sorted(identities), positions, **replaced, full_width=at_full_width)


def _at_full_width(compact: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the width of every module that is run at its full width, and the places of the channels that are left."""
    found = {}
    for path, module in compact.named_modules():
        spec = spec_of(module)
        if spec is not None:
            found[path] = {"spec": spec.to_dict(), "places": places_of(module).tolist()}
    return found


def _replaced(compact: nn.Module, dense: nn.Module) -> dict[str, dict[str, dict[str, Any]]]:
    """Replace modules of the dense network by the classes that work with fewer channels; say which, and how."""
    found: dict[str, dict[str, dict[str, Any]]] = {"norms": {}, "attentions": {}, "windows": {}, "standardised": {}}
    before = dict(dense.named_modules())
    for path, module in compact.named_modules():
        replaced: nn.Module
        if isinstance(module, CountedNorm):
            found["norms"][path] = module.spec.to_dict()
            replaced = CountedNorm(before[path], module.spec)
        elif isinstance(module, AnyPruned):
            found["windows" if in_windows(module.spec) else "attentions"][path] = module.spec.to_dict()
            replaced = pruned_attention(before[path], module.spec)
        elif isinstance(module, StandardisedConv2d):
            conv = before[path]
            assert isinstance(conv, nn.Conv2d)
            found["standardised"][path] = asdict(module.standardisation)
            replaced = StandardisedConv2d(conv, module.standardisation)
        else:
            continue
        replace_module(dense, path, replaced)
    return found


def _attributes(compact: nn.Module, dense: nn.Module, gone: set[str]) -> dict[str, dict[str, int | list[int]]]:
    """Return the whole numbers in which modules differ, one or several: channels, groups, features, sizes of parts."""
    before = dict(dense.named_modules(remove_duplicate=False))
    differing = {}
    for path, module in compact.named_modules(remove_duplicate=False):
        if path in gone or any(path.startswith(f"{layer}.") for layer in gone):
            continue
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


def _constant(layer: nn.Module) -> dict[str, Any]:
    assert isinstance(layer, ConstantLayer)
    spatial = None if layer.spatial is None else [list(sizes) for sizes in layer.spatial]
    return {"channels": len(layer.constant), "spatial": spatial}
