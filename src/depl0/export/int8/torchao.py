"""Static quantisation by PyTorch's own path: torchao's pt2e quantiser for x86, written as a ``.pt2`` file.

int8 weights have a scale for each output channel, and activations are rounded to uint8. PyTorch runs such a file as it
is, in floats that are rounded; ``torch.compile`` turns it into int8 instructions.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from depl0._util.optional import require
from depl0.analysis.recording import arguments, operator_name, quiet
from depl0.errors import ExportError
from depl0.export.folding import drop_unused, fold_batch_norms
from depl0.export.int8.quantizer import Int8File, Quantizer, Run, explained, of_size, unflatten
from depl0.export.program import capture, free_batch
from depl0.export.torch_files import Pt2, pack
from depl0.host.inputs import ExampleInputs

_WEIGHTED = ("conv1d", "conv2d", "linear")
_ROUNDED = "quantized_decomposed::dequantize"
OPERATORS = "torch.ao.quantization.fx._decomposed"
"""a module of torch that must be imported before an int8 file is loaded: it registers the file's operators"""

_TOOL = ("torchao", "quantize it as ONNX, or export it in float")
"""who quantises, and what to do where it cannot"""


@final
class TorchaoQuantizer(Quantizer):
    """A recorded graph in int8 that still holds the float weights, so that any layer can be taken back.

    Args:
        module: the network.
        example: inputs that it takes.
        inputs: calibration images.
        outputs: what the network returns, whose structure the file's outputs get.
        dynamic_batch: leave the batch size free.
    """

    def __init__(
        self,
        module: nn.Module,
        example: ExampleInputs,
        inputs: list[tuple[Tensor, ...]],
        outputs: Any,
        dynamic_batch: bool = False,
    ) -> None:
        prepare, convert, rules = _torchao()
        program = capture(module, example, dynamic_batch=dynamic_batch)
        fold_batch_norms(program)
        self._outputs = outputs
        self._size = None if dynamic_batch else len(example.args[0])
        self._float = pack(program)
        with explained(*_TOOL), torch.no_grad():
            observed = prepare(program.module(), rules)
            for batch in inputs:
                for part, _ in of_size(batch, self._size):
                    observed(*part)
            rounded = _recorded(convert(observed), program, dynamic_batch)
            self._data = pack(rounded)
        self._calls = _calls(program, rounded)
        self.layers = tuple(self._calls)
        if not self.layers:
            raise ExportError("the network has no convolution and no linear layer that could be written in int8.")

    def encode(self, in_float: Collection[str] = ()) -> bytes:
        """Return the int8 file."""
        with explained(*_TOOL):
            program = _loaded(self._data)  # a deep copy would rename inputs
            nodes = {node.name: node for node in program.graph.nodes}
            parameters = {name: nodes[place] for place, name in program.graph_signature.inputs_to_parameters.items()}
            for layer in in_float:
                for call, weight in self._calls[layer]:
                    _take_back(nodes[call], parameters[weight])
            program.graph.eliminate_dead_code()
            drop_unused(program)
            return pack(program)

    def describe(self, data: bytes, metadata: Mapping[str, str]) -> bytes:
        """Write metadata into a file."""
        return pack(_loaded(data), metadata)

    def in_float(self) -> Run:
        """Return the float file."""
        return self.open(self._float)

    def open(self, data: bytes) -> Run:
        """Return a call of a file, in batches of the size that it was exported for."""
        with explained(*_TOOL):
            network = _loaded(data).module()

        def run(*inputs: Tensor) -> Any:
            parts = []
            with torch.no_grad():
                for part, rows in of_size(tuple(tensor.detach().cpu() for tensor in inputs), self._size):
                    parts.append([output[:rows] for output in _tensors(network(*part))])
            return unflatten([torch.cat(list(outputs)) for outputs in zip(*parts, strict=True)], self._outputs)

        return run


@final
class Int8Pt2(Int8File):
    """An int8 ``.pt2`` file; torch alone reads it, torchao is not needed."""

    name: ClassVar[str] = Pt2.name
    suffix: ClassVar[str] = ".int8.pt2"
    reader: ClassVar[str] = f'import sys, {OPERATORS}\nsys.modules["torchao"] = None\n' + Pt2.reader


def _torchao() -> tuple[Any, Any, Any]:
    """Return what prepares a graph for calibration, what converts it, and the rules of what is rounded on x86."""
    package, purpose = "torchao.quantization.pt2e", "to write .pt2 files in int8"
    with explained(*_TOOL):
        steps = require(f"{package}.quantize_pt2e", "torchao", purpose, extra="torchao")
        x86 = require(f"{package}.quantizer.x86_inductor_quantizer", "torchao", purpose, extra="torchao")
        rules = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    return steps.prepare_pt2e, steps.convert_pt2e, rules


def _recorded(network: nn.Module, program: ExportedProgram, dynamic_batch: bool) -> ExportedProgram:
    """Record the converted graph, with the inputs of the float one; where its operators came from is left out."""
    assert program.example_inputs is not None
    args, kwargs = program.example_inputs
    shapes = free_batch(network, ExampleInputs(args, kwargs)) if dynamic_batch else None
    found = torch.export.export(network, args, kwargs, dynamic_shapes=shapes, strict=False)
    for node in found.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in ("val", "tensor_meta")}
    return found


def _calls(before: ExportedProgram, after: ExportedProgram) -> dict[str, list[tuple[str, str]]]:
    """Map layers to their calls in the int8 graph and the names of their float weights.

    A layer is called by its weight, as in the network. Calls keep their order, so the n-th is the same in both graphs.
    """
    names = before.graph_signature.inputs_to_parameters
    found: dict[str, list[tuple[str, str]]] = {}
    for call, rounded in zip(_weighted(before), _weighted(after), strict=True):
        weight = names.get(arguments(call)["weight"].name)
        if weight is not None and operator_name(arguments(rounded)["weight"]).startswith(_ROUNDED):
            found.setdefault(weight.removesuffix(".weight"), []).append((rounded.name, weight))
    return found


def _weighted(program: ExportedProgram) -> list[fx.Node]:
    return [node for node in program.graph.nodes if operator_name(node) in _WEIGHTED]


def _take_back(call: fx.Node, weight: fx.Node) -> None:
    """Let a call read what was there before rounding: its input as it came, and its float weight."""
    values = arguments(call)
    rounded = values["input"]
    if operator_name(rounded).startswith(_ROUNDED):
        call.replace_input_with(rounded, rounded.args[0].args[0])  # dequantise ← quantise ← what came
    call.replace_input_with(values["weight"], weight)


def _loaded(data: bytes) -> ExportedProgram:
    with quiet():
        return torch.export.load(io.BytesIO(data))


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
