"""Norms over all channels that go on counting the channels that were removed: they were zeros.

A layer norm divides by the number of channels, so one of fewer channels is another function. With the removed channels
exactly zero, the dense norm's statistics follow from those of the channels that are left. For a share s = left / width,
mean m and variance v of what is left,

    mean = s·m        variance = s·(v + (1 - s)·m²)        mean square = s·(mean square of what is left)

which is exact, and a sum of positive terms. :class:`CountedNorm` takes the place of a norm in a compact network, with
the same parameters under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from depl0.host.copies import private_copy

Kind = Literal["layer", "rms", "group", "response"]
"""mean and variance over channels; mean square over channels; mean and variance over everything but the batch; the
global response norm of ConvNeXt V2"""


@dataclass(frozen=True)
class NormSpec:
    """What a norm over all channels computes."""

    kind: Kind
    dim: int
    """the dimension of the channels; -1 where it is the last"""
    width: int
    """the number of channels that it counts: those of the dense network"""
    eps: float | None
    """None: what torch's RMSNorm takes then, the precision of its input"""
    scale: str | None
    """the parameter that multiplies"""
    shift: str | None
    """the parameter that is added"""
    single: bool = False
    """whether it normalises in float32, whatever the precision of its input"""
    offset: float = 0.0
    """what is added to the scale: Gemma's norms keep it less one, and multiply before they go back to the input's
    precision"""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {key: value for key, value in asdict(self).items() if key not in {"single", "offset"} or value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NormSpec:
        """Read plain data back; a ValueError says what is wrong."""
        spec = cls(**data)
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (spec.dim, spec.width))
        names = all(name is None or isinstance(name, str) for name in (spec.scale, spec.shift))
        number = spec.eps is None or isinstance(spec.eps, (int, float))
        known = spec.kind in get_args(Kind) and isinstance(spec.single, bool) and isinstance(spec.offset, float)
        if not known or not whole or not names or not number or spec.width < 1:
            raise ValueError(f"{str(data)[:100]} describes no norm")
        return spec


@final
class CountedNorm(nn.Module):
    """A norm over channels some of which are gone; it counts them as the zeros that they were."""

    def __init__(self, norm: nn.Module, spec: NormSpec) -> None:
        super().__init__()
        self.spec = spec
        self.eps = spec.eps  # nn.TransformerEncoderLayer looks at it
        for name, parameter in norm._parameters.items():
            self.register_parameter(name, parameter)
        self.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise as the dense network did with zeros in place of what is gone."""
        spec = self.spec
        values = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        scale, shift = (self._along_channels(name, x.dim()) for name in (spec.scale, spec.shift))
        normalised = _normalised(x.float(), spec) if spec.single else _normalised(values, spec)
        if spec.offset:
            assert scale is not None
            scale = scale.to(normalised.dtype) + spec.offset
        elif spec.single:
            normalised = normalised.to(x.dtype)
        result = _affine(spec, values, normalised, scale, shift)
        # as torch's own norms: float32 under autocast, which is so on graphics cards alone, else the input's precision
        full = x.device.type == "cuda" and torch.is_autocast_enabled("cuda")
        return result if full else result.to(x.dtype)

    def _along_channels(self, name: str | None, ndim: int) -> Tensor | None:
        if name is None:
            return None
        view = [1] * ndim
        view[self.spec.dim] = -1
        vector: Tensor = getattr(self, name)  # a gated call has put a plain tensor in the parameter's place
        return vector.view(view)

    def extra_repr(self) -> str:
        """Say which norm this is, and what it counts."""
        return f"{self.spec.kind}, counts {self.spec.width} channels, dim={self.spec.dim}, eps={self.spec.eps}"


def _normalised(x: Tensor, spec: NormSpec) -> Tensor:
    share = x.shape[spec.dim] / spec.width
    if spec.kind == "rms":
        eps = torch.finfo(x.dtype).eps if spec.eps is None else spec.eps
        return x * torch.rsqrt(x.square().mean(spec.dim, keepdim=True) * share + eps)
    eps = 0.0 if spec.eps is None else spec.eps
    if spec.kind == "response":
        inner = [dim for dim in range(1, x.dim()) if dim != spec.dim % x.dim()]
        response: Tensor = torch.linalg.vector_norm(x, dim=inner, keepdim=True)
        return x * (response / (response.mean(spec.dim, keepdim=True) * share + eps))
    dims = [spec.dim] if spec.kind == "layer" else list(range(1, x.dim()))
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    variance = share * (variance + (1 - share) * mean.square())
    return (x - share * mean) * torch.rsqrt(variance + eps)


def _affine(spec: NormSpec, x: Tensor, normalised: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    result = normalised if scale is None else normalised * scale
    if shift is not None:
        result = result + shift
    return x + result if spec.kind == "response" else result


# -- recognising norms by what they compute ------------------------------------------------------------------------


def recognise(module: nn.Module, dim: int, ndim: int, width: int, epsilons: Iterable[float | None]) -> NormSpec | None:
    """Return what norm over all channels a module is, or None.

    Whoever wrote it, and however: it is a known norm if it gives the same values, in float64, with random parameters on
    random inputs; or the same but for rounding, if it normalises in float32 (language models), on inputs so small that
    the number that it adds tells too. ``dim`` is where the channels are in an input of ``ndim`` dimensions.
    """
    if isinstance(module, CountedNorm):
        return module.spec
    parameters = [name for name, parameter in module._parameters.items() if parameter is not None]
    shapes = [module.get_parameter(name).shape for name in parameters]
    if any(True for _ in module.children()) or any(True for _ in module.buffers()):
        return None
    if any([size for size in shape if size > 1] != [width] for shape in shapes):
        return None
    if len(parameters) > 2 or module._forward_hooks or module._forward_pre_hooks:
        return None
    rng = torch.Generator().manual_seed(0)
    try:
        tried = private_copy(module).double()
        shape = [2, *(3 + place for place in range(1, ndim))]
        shape[dim] = width
        x = torch.randn(shape, generator=rng, dtype=torch.float64) + 0.5
        with torch.no_grad():
            for parameter in tried.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=rng) + 0.5)
            wanted = [[tried.train(mode)(inputs) for mode in (True, False)] for inputs in (x, x / 100)]
            possible = list(_possible(dim, ndim, width, tuple(dict.fromkeys(epsilons)), parameters))
            possible += [replace(spec, offset=1.0) for spec in possible if spec.kind == "rms" and spec.scale]
            for spec in [*possible, *(replace(spec, single=True) for spec in possible)]:
                module = CountedNorm(tried, spec)
                found = [module(inputs) for inputs in (x, x / 100)]
                if all(_same(w, f, spec.single) for both, f in zip(wanted, found, strict=True) for w in both):
                    return spec
    except Exception:  # it wants something else than this input, so it is something else
        return None
    return None


def _possible(
    dim: int, ndim: int, width: int, epsilons: tuple[float | None, ...], parameters: list[str]
) -> Iterator[NormSpec]:
    place = -1 if dim == ndim - 1 else dim
    names: list[tuple[str | None, str | None]] = [(None, None)]
    if len(parameters) == 1:
        names = [(parameters[0], None)]
    elif parameters:
        names = [(parameters[0], parameters[1]), (parameters[1], parameters[0])]
    for eps, (scale, shift), kind in product(epsilons, names, get_args(Kind)):
        spec = NormSpec(kind, place, width, eps, scale, shift)
        if kind == "group":
            spec = replace(spec, dim=1)
        usable = {"layer": True, "rms": shift is None, "group": dim == 1 and ndim > 2, "response": ndim > 2}[kind]
        if usable and (eps is not None or kind == "rms"):
            yield spec


def _same(wanted: Any, found: Tensor, single: bool) -> bool:
    if not isinstance(wanted, Tensor) or wanted.shape != found.shape:
        return False
    relative, absolute = (3e-6, 1e-6) if single else (1e-9, 1e-10)
    return torch.allclose(wanted, found, relative, absolute)
