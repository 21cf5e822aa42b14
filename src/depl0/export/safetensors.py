"""The plain weights of a compact network in one safetensors file, for code that builds the small network itself."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from depl0.errors import InputError
from depl0.export.targets import NO_DEPL0, Request, Target, register


@final
@register
class Safetensors(Target):
    """Every entry of the state dict, contiguous and by its own name, with batch norms as they are."""

    name: ClassVar[str] = "safetensors"
    suffix: ClassVar[str] = ".safetensors"
    reader: ClassVar[str] = (
        NO_DEPL0
        + """
sys.modules["torch"] = None
import numpy, safetensors
file, given, answers = sys.argv[1:]
with open(file, "rb") as opened:
    tensors = safetensors.deserialize(opened.read())
numpy.savez(answers, **{name: numpy.frombuffer(tensor["data"], numpy.uint8) for name, tensor in tensors})
"""
    )

    def encode(self, request: Request) -> bytes:
        """Write the state dict; tied tensors are written once for each of their names."""
        for option, given in (("--opset", request.opset is not None), ("--dynamic-batch", request.dynamic_batch)):
            if given:
                raise InputError(f"{option} is not for --to safetensors: it holds weights and no graph.")
        data: bytes = save(state_of(request.module), metadata=dict(request.metadata))
        return data

    def expected(self, request: Request) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Expect the weights themselves, byte by byte."""
        return {}, {name: _bytes(tensor) for name, tensor in state_of(request.module).items()}


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict on the CPU, every tensor with memory of its own."""
    state = module.state_dict()
    return {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}


def _bytes(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor's bytes: a single number may have a stride that does not let it be viewed as bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8)
