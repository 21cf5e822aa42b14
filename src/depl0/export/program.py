"""The graph of a network as it is deployed: recorded once by ``torch.export``, then written in several formats."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from depl0.analysis.recording import quiet, user_frame
from depl0.errors import TraceError
from depl0.host.copies import isolated_deepcopy
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, first_line, run_checked

BATCH = "batch"
"""the name of a free batch size"""


def capture(module: nn.Module, example: ExampleInputs | Tensor, *, dynamic_batch: bool = False) -> ExportedProgram:
    """Record the evaluation pass of a copy of a network, on the CPU.

    With ``dynamic_batch`` the first dimension of every input stays free. It is recorded with two images, because
    ``torch.export`` treats a size of one as a constant.
    """
    copied = isolated_deepcopy(check_host(module)).cpu().eval()
    inputs = ExampleInputs.of(example).map_tensors(lambda tensor: tensor.detach().cpu().clone())  # no view of a batch
    run_checked(copied, inputs)
    shapes = None
    if dynamic_batch:
        inputs = inputs.twice()
        batch, bound = Dim(BATCH), inspect.signature(copied.forward).bind(*inputs.args, **inputs.kwargs)
        shapes = pytree.tree_map(
            lambda leaf: {0: batch} if isinstance(leaf, Tensor) and leaf.dim() > 0 else None, dict(bound.arguments)
        )
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(copied, inputs.args, inputs.kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        free = " with a free batch size" if dynamic_batch else ""
        raise TraceError(
            f"the evaluation pass of {type(module).__name__} cannot be recorded{free}: "
            f"{first_line(error)}{user_frame(error)}",
            hint="export without dynamic_batch, or use x.flatten(1) and -1 instead of a number of images."
            if dynamic_batch
            else "forward must not branch on the values of tensors (if x.sum() > 0, .item(), .tolist()).",
        ) from error


def input_names(program: ExportedProgram) -> list[str]:
    """Return the names of the inputs in an exported file: "input", or their own names if there are several."""
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return ["input"] if len(names) == 1 else names


def output_names(program: ExportedProgram) -> list[str]:
    """Return the names of the outputs in an exported file: "output", or "output_0", "output_1", …."""
    count = len(program.graph_signature.user_outputs)
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]
