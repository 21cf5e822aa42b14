"""Small files: a quantised ONNX graph without the long names, zeros and defaults that are written into it.

In a small network they are a tenth of the file. Weights keep the names of their parameters.
"""

from __future__ import annotations

from typing import Any


def shorten(onnx: Any, proto: Any) -> None:
    """Give intermediate tensors short names; leave out zero points that are zero and attributes at their default."""
    graph = proto.graph
    _drop_zero_points(onnx, graph)
    _drop_defaults(onnx, graph)
    fixed = {value.name for value in (*graph.input, *graph.output)} | {""}
    names = _weight_names(graph)
    taken = fixed | set(names.values())
    number = 0
    for node in graph.node:
        for name in (*node.input, *node.output):
            if name in fixed or name in names:
                continue
            while (short := _digits(number)) in taken:
                number += 1
            names[name], number = short, number + 1
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.name = ""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    del graph.value_info[:]


def _weight_names(graph: Any) -> dict[str, str]:
    """Map the int8 values of a parameter to the parameter's own name."""
    suffix = "_quantized"
    return {
        tensor.name: tensor.name.removesuffix(suffix)
        for tensor in graph.initializer
        if tensor.name.endswith(f".weight{suffix}")
    }


def _drop_zero_points(onnx: Any, graph: Any) -> None:
    """Leave out the zero points of weights: without one, DequantizeLinear takes zero."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    zeros = {name for name, tensor in tensors.items() if tensor.dims and not onnx.numpy_helper.to_array(tensor).any()}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and len(node.input) == 3 and node.input[2] in zeros:
            del node.input[2]
    used = {name for node in graph.node for name in node.input}
    for name, tensor in tensors.items():
        if name not in used:
            graph.initializer.remove(tensor)


def _drop_defaults(onnx: Any, graph: Any) -> None:
    """Leave out attributes of convolutions that say what ONNX takes without them."""
    for node in graph.node:
        if node.op_type != "Conv":
            continue
        for attribute in list(node.attribute):
            value = onnx.helper.get_attribute_value(attribute)
            if (attribute.name, value) in (("auto_pad", b"NOTSET"), ("group", 1)) or (
                attribute.name == "dilations" and set(value) == {1}
            ):
                node.attribute.remove(attribute)


def _digits(number: int) -> str:
    signs = "abcdefghijklmnopqrstuvwxyz"
    text = signs[number % 26]
    while number >= 26:
        number = number // 26 - 1
        text = signs[number % 26] + text
    return text
