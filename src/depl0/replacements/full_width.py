"""Small modules that look at all channels at once: they get the channels that are gone as the zeros that they were.

A mean or a maximum over channels, or a convolution along them (ECA, CBAM), is another function of fewer channels. Where
such a module costs next to nothing, the compact network runs it at its full width: zeros are put in the places of
removed channels, the module's own code runs, and what it gives at those places is dropped. The module stays the object
that it was, with all its names; only its class becomes one that does this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

_PLACES = "_depl0_places"
_SPEC = "_depl0_width"


@dataclass(frozen=True)
class WidthSpec:
    """What a module reads, and what it gives."""

    width: int
    """the number of channels of the dense network"""
    dim: int
    """where they are in the input"""
    out_dim: int | None
    """where they are in the output; None: there are none"""
    keeps_zeros: bool
    """whether a channel that comes in as zeros comes out as zeros"""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WidthSpec:
        """Read plain data back; a ValueError says what is wrong."""
        spec = cls(**data)
        numbers = (spec.width, spec.dim, 0 if spec.out_dim is None else spec.out_dim)
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
        if not whole or spec.width < 1 or not isinstance(spec.keeps_zeros, bool):
            raise ValueError(f"{str(data)[:100]} describes no width")
        return spec


class FullWidth:
    """Marks modules that are run at their full width."""


def spec_of(module: nn.Module) -> WidthSpec | None:
    """Return the width at which a module is run; None for all others."""
    found = vars(module).get(_SPEC)
    return found if isinstance(found, WidthSpec) else None


def places_of(module: nn.Module) -> Tensor:
    """Return where the channels that are left were in the dense network, for a module that has a width."""
    places: Tensor = vars(module)[_PLACES]
    return places


def keep_full_width(module: nn.Module, spec: WidthSpec, keep: Tensor) -> None:
    """Let a module see only these of its channels from now on, in place, and take the others for zeros."""
    known = vars(module).get(_PLACES)
    places = torch.arange(spec.width) if known is None else known
    if known is None:
        base = type(module)
        module.__class__ = _CLASSES.setdefault(base, _class_for(base))
        vars(module)[_SPEC] = spec
    vars(module)[_PLACES] = places[keep.to(places.device)]


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}
"""class of a module -> the class that it gets"""


def _class_for(base: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        spec, places = vars(self)[_SPEC], vars(self)[_PLACES].to(x.device)
        outputs = base.forward(self, _with_zeros(x, spec, places), *args, **kwargs)
        return outputs if spec.out_dim is None else outputs.index_select(spec.out_dim, places)

    def extra_repr(self: nn.Module) -> str:
        spec, places = vars(self)[_SPEC], vars(self)[_PLACES]
        said = base.extra_repr(self)
        return f"{said}{', ' if said else ''}{len(places)} of {spec.width} channels, the others are zeros"

    members = {"forward": forward, "extra_repr": extra_repr, "__doc__": base.__doc__, "__module__": __name__}
    return type(f"FullWidth{base.__name__}", (FullWidth, base), members)


def _with_zeros(x: Tensor, spec: WidthSpec, places: Tensor) -> Tensor:
    """Put channels in their places, and zeros in all others."""
    source = torch.full((spec.width,), x.shape[spec.dim], device=x.device)  # the channel of zeros at the end
    source = source.scatter(0, places, torch.arange(len(places), device=x.device))
    zeros = torch.zeros_like(x.narrow(spec.dim, 0, 1))
    return torch.cat([x, zeros], spec.dim).index_select(spec.dim, source)
