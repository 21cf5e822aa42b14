"""Networks as ONNX files, by ``torch.onnx.export`` on a recorded graph."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from depl0._util.io import atomic_write
from depl0._util.optional import require
from depl0.analysis.recording import quiet
from depl0.errors import ExportError, InputError
from depl0.export.program import BATCH, capture, input_names, output_names
from depl0.export.targets import Request, Target, reader_program, register
from depl0.host.inputs import ExampleInputs
from depl0.host.network import first_line

DEFAULT_OPSET = 18
"""the oldest that torch writes without a conversion"""


@final
@register
class Onnx(Target):
    """An ONNX graph with its weights in one file."""

    name: ClassVar[str] = "onnx"
    suffix: ClassVar[str] = ".onnx"
    packages: ClassVar[tuple[str, ...]] = ("onnxruntime", "onnx", "onnxscript")
    reader: ClassVar[str] = reader_program(
        """
sys.modules["torch"] = None
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
names = [value.name for value in session.get_inputs()]
def network(*arrays):
    return session.run(None, dict(zip(names, arrays)))
"""
    )

    def encode(self, request: Request) -> bytes:
        """Record the network and translate it."""
        return onnx_bytes(request.record(has_opset=True), opset=request.opset, metadata=request.metadata)


def export_onnx(
    module: nn.Module,
    example: ExampleInputs | Tensor,
    path: str | os.PathLike[str] | None = None,
    *,
    opset: int | None = None,
    dynamic_batch: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Export any network in evaluation mode to ONNX.

    One input is called "input" and one output "output". The file is not run: see :mod:`depl0.export.checked` for that.

    Args:
        module: the network, which is not modified.
        example: inputs that it takes.
        path: also write the file here.
        opset: ONNX opset, 18 by default.
        dynamic_batch: leave the batch size free.
        metadata: entries of the file's ``metadata_props``.

    Returns:
        The bytes of the file.

    Raises:
        ExportError: the network uses an operator that ONNX lacks, or is too large for one file.
        InputError: the opset is not one that the network can be written in.
        TraceError: the network cannot be recorded, with ``dynamic_batch`` perhaps because it fixes its batch size.

    Example:
        >>> import torch
        >>> data = export_onnx(torch.nn.Linear(4, 2), torch.zeros(1, 4))
        >>> b"input" in data and b"output" in data
        True
    """
    program = capture(module, example, dynamic_batch=dynamic_batch)
    data = onnx_bytes(program, opset=opset, metadata=metadata)
    if path is not None:
        atomic_write(Path(path), data)
    return data


def onnx_bytes(
    program: ExportedProgram, *, opset: int | None = None, metadata: Mapping[str, str] | None = None
) -> bytes:
    """Translate a recorded graph to ONNX."""
    onnx = require("onnx", "onnx", "to write ONNX files", extra="export")
    require("onnxscript", "onnxscript", "to write ONNX files", extra="export")
    wanted = DEFAULT_OPSET if opset is None else opset
    newest = int(onnx.defs.onnx_opset_version())
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not DEFAULT_OPSET <= wanted <= newest:
        raise InputError(
            f"opset must be an integer from {DEFAULT_OPSET} to {newest}, got {wanted!r} instead.",
            hint=f"leave opset out: {DEFAULT_OPSET} is read by every runtime of the last years.",
        )
    proto = _translate(program, wanted)
    found = next(int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    if found != wanted:
        raise InputError(f"the network cannot be written in opset {wanted}; {found} works.", hint=f"opset={found}")
    proto.ir_version = max(4, int(onnx.helper.find_min_ir_version_for(list(proto.opset_import))))
    _name_batch(proto, program)
    _forget_sources(proto)
    for key, value in (metadata or {}).items():
        proto.metadata_props.add(key=key, value=value)
    try:
        return bytes(proto.SerializeToString())
    except Exception as error:  # protobuf's own error classes changed over time
        raise ExportError(
            f"the network is too large for one ONNX file: {first_line(error)}", hint="export it as pt2."
        ) from error


def _translate(program: ExportedProgram, opset: int) -> Any:
    try:
        with quiet():
            translated = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=opset,
                input_names=input_names(program),
                output_names=output_names(program),
                external_data=False,
                verbose=False,
            )
            assert translated is not None
            return translated.model_proto
    except Exception as error:
        raise _refusal(error) from error


# -- names and metadata ------------------------------------------------------------------------------------------------


def _name_batch(proto: Any, program: ExportedProgram) -> None:
    """Call a free first dimension "batch" instead of by torch's symbol."""
    symbols = {dim.dim_param for value in proto.graph.input for dim in value.type.tensor_type.shape.dim[:1]} - {""}
    if not symbols or not program.range_constraints:
        return
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    for dim in (dim for value in values for dim in value.type.tensor_type.shape.dim):
        if dim.dim_param in symbols:
            dim.dim_param = BATCH


def _forget_sources(proto: Any) -> None:
    """Remove the exporter's stack traces. They contain local file names and make up most of the file."""
    for entry in [proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.graph.output]:
        del entry.metadata_props[:]
        entry.doc_string = ""


def _refusal(error: BaseException) -> ExportError:
    """Return the error that names the unsupported operator."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    missing = re.search(r"No ONNX function found for <OpOverload\(op='([^']+)'", "\n".join(map(str, causes)))
    if missing:
        return ExportError(
            f"ONNX has no operator for {missing.group(1)}, which the network uses.",
            hint="replace it in the network by operators that ONNX has, or export as pt2.",
        )
    return ExportError(
        f"the network cannot be translated to ONNX: {type(causes[-1]).__name__}: {first_line(causes[-1])}",
        hint="export as pt2, or replace the layer; the original error is chained to this one.",
    )
