"""Families of operators, by their aten names, and the parts of those that are layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import fx

from depl0.analysis.recording import arguments, operator_name, shape_of

CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}
TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
LAYERS = CONVOLUTIONS | TRANSPOSED | {"linear"}
PRODUCTS = {"addmm", "mm", "matmul", "einsum"}
"""products with a stored matrix are layers too; but for einsum's, their weight is (inputs, outputs)"""
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
IDENTITIES = {
    "alias", "clone", "contiguous", "detach", "lift_fresh_copy", "to", "_to_copy", "type_as", "dropout",
    "feature_dropout", "lift_fresh", "view_as_real_copy",
}  # fmt: skip
UNIFORM = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full"}
LIKE = {"zeros_like", "ones_like", "rand_like", "randn_like", "empty_like", "full_like", "bernoulli"}
POOLS = {
    "max_pool1d": 1, "max_pool2d": 2, "max_pool3d": 3, "avg_pool1d": 1, "avg_pool2d": 2, "avg_pool3d": 3,
    "adaptive_avg_pool1d": 1, "adaptive_avg_pool2d": 2, "adaptive_avg_pool3d": 3, "adaptive_max_pool1d": 1,
    "adaptive_max_pool2d": 2, "adaptive_max_pool3d": 3, "max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3,
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3, "upsample_linear1d": 1,
    "upsample_bilinear2d": 2, "upsample_trilinear3d": 3, "upsample_bicubic2d": 2, "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 2, "_upsample_nearest_exact1d": 1, "_upsample_nearest_exact2d": 2,
    "_upsample_nearest_exact3d": 3,
}  # fmt: skip
REDUCTIONS = {"mean", "sum", "amax", "amin", "var", "std", "prod", "max", "min", "logsumexp", "linalg_vector_norm"}
ALONG_ONE_DIM = {"softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"}
RESHAPES = {"view", "reshape", "_unsafe_view", "expand", "repeat", "tile", "unflatten", "flatten", "view_as",
            "reshape_as", "expand_as"}  # fmt: skip
MOVES = {"permute", "transpose", "t", "numpy_T", "movedim", "swapaxes", "swapdims", "squeeze", "unsqueeze", "cat",
         "concat", "concatenate", "stack"}  # fmt: skip
CONCATENATIONS = {"cat", "concat", "concatenate"}
LITERAL_INDEXING = {"slice", "select", "narrow", "split", "split_with_sizes", "unbind", "flip", "roll", "unsafe_split",
                    "unsafe_chunk"}  # fmt: skip
PARTS = {"slice", "narrow", "split", "split_with_sizes", "unsafe_split", "tensor_split"}
UNTAGGED_POINTWISE = {
    "hardtanh", "relu6", "hardswish", "hardsigmoid", "silu", "gelu", "mish", "elu", "celu", "selu", "softplus",
    "leaky_relu", "log_sigmoid", "softsign", "rrelu", "threshold", "hardshrink", "softshrink",
}  # fmt: skip
NORMS_OVER_LAST = {"layer_norm", "rms_norm"}


@dataclass(frozen=True)
class LayerParts:
    """What a layer is called with, and which dimensions of its weight are outputs and inputs."""

    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    out_dim: int
    in_dim: int | None
    """None for grouped convolutions that lose whole groups: their inputs live and die with their outputs"""


def layer_parts(node: fx.Node) -> LayerParts | None:
    """Return the parts of a convolution, linear layer or product with a matrix; None for any other operator."""
    name = operator_name(node)
    if name not in LAYERS | PRODUCTS:
        return None
    if name == "einsum":
        product = product_of(node)
        if product is None:
            return None
        return LayerParts(product.input, product.weight, None, product.weight_out, product.weight_in)
    given = arguments(node)
    if name in PRODUCTS:
        if name == "addmm":
            return _product_parts(given["mat1"], given["mat2"], given["self"])
        return _product_parts(given["self"], given["mat2" if name == "mm" else "other"], None)
    if name == "linear":
        return LayerParts(given["input"], given["weight"], given["bias"], 0, 1)
    dense, transposed = int(given["groups"]) == 1, is_transposed(node)
    dims = (1, 0) if transposed and dense else (0, 1)
    reads = dense or loses_places(node)
    return LayerParts(given["input"], given["weight"], given["bias"], dims[0], dims[1] if reads else None)


def _product_parts(source: fx.Node, weight: fx.Node, bias: fx.Node | None) -> LayerParts:
    """Return the parts of ``source @ weight``, or of ``source @ weight.T``."""
    if is_matrix_turned(weight):
        return LayerParts(source, weight.all_input_nodes[0], bias, 0, 1)
    return LayerParts(source, weight, bias, 1, 0)


def is_matrix_turned(node: fx.Node) -> bool:
    """Tell whether a node is the transpose of a stored matrix."""
    turns = operator_name(node) in {"t", "numpy_T", "matrix_H", "mT", "permute", "transpose", "swapaxes", "swapdims"}
    sources = node.all_input_nodes
    if not turns or len(sources) != 1 or sources[0].op != "placeholder" or len(shape_of(sources[0])) != 2:
        return False
    return operator_name(node) != "permute" or [d % 2 for d in arguments(node)["dims"]] == [1, 0]


def is_transposed(node: fx.Node) -> bool:
    """Tell whether a convolution is a transposed one."""
    return operator_name(node) in TRANSPOSED or bool(arguments(node).get("transposed"))


def loses_places(node: fx.Node) -> bool:
    """Tell whether a grouped convolution loses the same places of every group, and not whole groups.

    Few wide groups (ResNeSt has two) are worth keeping: there is more to choose from within them.
    """
    given = arguments(node)
    groups, inputs = int(given["groups"]), shape_of(given["weight"])[1]
    return 1 < groups < inputs and shape_of(given["weight"])[0] > groups and not is_transposed(node)


def is_pointwise(node: fx.Node) -> bool:
    """Tell whether an operator works position by position: by torch's own tag, or by our list where it is missing."""
    name = operator_name(node)
    if name == "where":
        return len(node.args) == 3  # with the condition alone it gives places
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or name in UNTAGGED_POINTWISE


@dataclass(frozen=True)
class WeightProduct:
    """A tensor times a weight, summed over one dimension of both, with one new dimension from the weight."""

    input: fx.Node
    weight: fx.Node
    input_dim: int
    output_dim: int
    weight_in: int
    weight_out: int
    macs_per_pair: int


def product_of(node: fx.Node) -> WeightProduct | None:
    """Read an equation of ``einsum``; None where it is no plain layer: other sums, several weights, diagonals."""
    given = arguments(node)
    tensors = [n for n in given["tensors"] if isinstance(n, fx.Node)]
    terms, arrow, result = str(given["equation"]).replace(" ", "").partition("->")
    letters = terms.split(",")
    stored = [place for place, n in enumerate(tensors) if n.op == "placeholder"]
    if operator_name(node) != "einsum" or not arrow or len(tensors) != 2 or len(letters) != 2 or not stored:
        return None
    place = stored[-1]
    weight, source = letters[place], letters[1 - place]
    if "." in weight or any(len(set(term)) != len(term) for term in (weight, *(t.replace("...", "") for t in letters))):
        return None
    summed = [letter for letter in weight if letter in source and letter not in result]
    fresh = [letter for letter in weight if letter in result and letter not in source]
    shared = [letter for letter in weight if letter in source and letter in result]
    if len(summed) != 1 or len(fresh) != 1 or len(summed) + len(fresh) + len(shared) != len(weight):
        return None
    others = [letter for letter in source.replace("...", "") if letter not in weight and letter not in result]
    if others:  # summed over the tensor alone
        return None
    sizes = shape_of(node)
    dim = _place(fresh[0], result, len(sizes))
    return WeightProduct(
        tensors[1 - place],
        tensors[place],
        _place(summed[0], source, len(shape_of(tensors[1 - place]))),
        dim,
        weight.index(summed[0]),
        weight.index(fresh[0]),
        math.prod(size for other, size in enumerate(sizes) if other != dim),
    )


def _place(letter: str, term: str, ndim: int) -> int:
    """Return the dimension of a letter, which may lie behind an ellipsis."""
    before, dots, after = term.partition("...")
    if not dots or letter in before:
        return term.index(letter)
    return ndim - len(after) + after.index(letter)
