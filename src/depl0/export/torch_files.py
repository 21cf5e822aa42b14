"""Networks as files of PyTorch: a recorded graph (``.pt2``), or plain weights (safetensors)."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.export import ExportedProgram

from depl0.analysis.recording import quiet
from depl0.errors import InputError
from depl0.export.targets import CALL_TORCH, Request, Target, reader_program, register

METADATA = "metadata.json"
"""the extra file of an archive that holds the metadata"""


@final
@register
class Pt2(Target):
    """A recorded graph with its weights, which ``torch.export.load`` reads without the network's class."""

    name: ClassVar[str] = "pt2"
    suffix: ClassVar[str] = ".pt2"
    reader: ClassVar[str] = reader_program("import torch\nmodule = torch.export.load(file).module()\n" + CALL_TORCH)

    def encode(self, request: Request) -> bytes:
        """Record the network and pack it."""
        return pack(request.record(), request.metadata)


def pack(program: ExportedProgram, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a ``.pt2`` file for a recorded graph."""
    _forget_sources(program)
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={METADATA: json.dumps(dict(metadata or {}), indent=1)})
    return file.getvalue()


def _forget_sources(program: ExportedProgram) -> None:
    """Remove stack traces, because they contain local file names."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)


@final
@register
class Safetensors(Target):
    """Every entry of the state dict under its own name, contiguous, with batch norms unchanged."""

    name: ClassVar[str] = "safetensors"
    suffix: ClassVar[str] = ".safetensors"
    reader: ClassVar[str] = """
import sys
sys.modules["depl0"] = sys.modules["torch"] = None
import numpy, safetensors
file, given, answers = sys.argv[1:4]
with open(file, "rb") as opened:
    tensors = safetensors.deserialize(opened.read())
numpy.savez(answers, **{name: numpy.frombuffer(tensor["data"], numpy.uint8) for name, tensor in tensors})
"""

    def encode(self, request: Request) -> bytes:
        """Write the state dict; tied tensors are written once for each of their names."""
        for option, given in (("opset", request.opset is not None), ("dynamic_batch", request.dynamic_batch)):
            if given:
                raise InputError(f"{option} is not for safetensors files: they hold weights and no graph.")
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
    """Return a copy of a tensor's bytes. It is copied because the stride of a scalar may not allow a view as bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8)
