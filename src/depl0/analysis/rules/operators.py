"""Families of operators, by their aten names, and the parts of those operators that are layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from depl0.analysis.recording import arguments, operator_name, shape_of

CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}
TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
LAYERS = CONVOLUTIONS | TRANSPOSED | {"linear"}
PRODUCTS = {"addmm", "mm", "matmul", "bmm"}
"""Products with a stored matrix are layers too; their weight is (inputs, outputs)."""
CASTS = {"to", "_to_copy", "type_as"}
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
         "concat", "concatenate", "stack", "repeat_interleave"}  # fmt: skip
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
    """The arguments of a layer, and the output and input dimensions of its weight."""

    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    out_dim: int
    in_dim: int | None
    """None for grouped convolutions that lose whole groups: their inputs are removed with their outputs."""
    place: int = -1
    """Channel dimension in the input and output of a product, counted from the end."""


def layer_parts(node: fx.Node) -> LayerParts | None:
    """Return the parts of a convolution, linear layer or product with a matrix; None for any other operator."""
    name = operator_name(node)
    if name not in LAYERS | PRODUCTS:
        return None
    given = arguments(node)
    if name in PRODUCTS:
        if name == "addmm":
            return _product_parts(given["mat1"], given["mat2"], given["self"])
        return _product_parts(given["self"], given["other" if name == "matmul" else "mat2"], None)
    if name == "linear":
        return _linear_parts(given["input"], given["weight"], given["bias"])
    dense, transposed = int(given["groups"]) == 1, is_transposed(node)
    dims = (1, 0) if transposed and dense else (0, 1)
    reads = dense or loses_places(node)
    return LayerParts(given["input"], given["weight"], given["bias"], dims[0], dims[1] if reads else None)


def _linear_parts(source: fx.Node, weight: fx.Node, bias: fx.Node | None) -> LayerParts:
    stored, turned = stored_matrix(weight) or (weight, False)
    last = len(shape_of(stored)) - 1 if stored is not weight else 1
    dims = (last, last - 1) if turned else (last - 1, last)
    return LayerParts(source, stored, bias, *dims)


def _product_parts(left: fx.Node, right: fx.Node, bias: fx.Node | None) -> LayerParts:
    """Return the parts of ``left @ right``: the weight is on the right, or on the left if it comes from a stack."""
    found, place = stored_matrix(right), -1
    if found is None and left.op != "placeholder":
        found, place = stored_matrix(left), -2
    stored, turned = found or (right, False)
    source, last = left if place == -1 or found is None else right, len(shape_of(stored)) - 1
    dims = (last - 1, last) if turned == (place == -1) else (last, last - 1)
    return LayerParts(source, stored, bias, *dims, place if found is not None else -1)


def stored_matrix(node: fx.Node) -> tuple[fx.Node, bool] | None:
    """Return the stored matrix, or stack of matrices, behind a node, and whether it is transposed.

    Between them it may be cast, transposed, or selected from the stack by indices, as the weights of experts are.
    """
    turned = False
    while node.op != "placeholder":
        if not is_matrix_moved(node):
            return None
        turned ^= _is_turn(node)
        node = node.all_input_nodes[0]
    return node, turned


def is_matrix_moved(node: fx.Node) -> bool:
    """Return True if a node keeps the matrices of a tensor whole: a cast, a transpose, or a selection from a stack."""
    return operator_name(node) in CASTS or _is_turn(node) or _picks_matrices(node)


def is_weight(node: fx.Node) -> bool:
    """Return True if a node is a stored matrix, or part of a stack, that is only used as the weight of layers."""
    found = stored_matrix(node)

    def reads(user: fx.Node) -> bool:
        if is_matrix_moved(user):
            return all(map(reads, user.users))
        parts = layer_parts(user)
        return parts is not None and found is not None and parts.weight is found[0] and parts.input is not node

    return found is not None and node.op != "placeholder" and all(map(reads, node.users))


def _is_turn(node: fx.Node) -> bool:
    """Return True if a node swaps only the last two dimensions."""
    name = operator_name(node)
    if name not in {"t", "numpy_T", "matrix_H", "mT", "permute", "transpose", "swapaxes", "swapdims"}:
        return False
    ndim = len(shape_of(node))
    if ndim < 2 or name in {"t", "numpy_T", "matrix_H", "mT"}:
        return ndim == 2
    turned = [*range(ndim - 2), ndim - 1, ndim - 2]
    if name == "permute":
        return [dim % ndim for dim in arguments(node)["dims"]] == turned
    return {dim % ndim for dim in node.args[1:]} == set(turned[-2:])  # type: ignore[operator]


def _picks_matrices(node: fx.Node) -> bool:
    """Return True if a node selects from a stack along its first dimension, without a boolean mask."""
    name = operator_name(node)
    if name not in {"index", "index_select", "select"} or len(shape_of(node.all_input_nodes[0])) < 3:
        return False
    if name == "index":
        indices = arguments(node)["indices"]
        return len(indices) == 1 and indices[0].meta["val"].dtype != torch.bool
    return int(arguments(node)["dim"]) == 0


def is_transposed(node: fx.Node) -> bool:
    """Return True if a convolution is transposed."""
    return operator_name(node) in TRANSPOSED or bool(arguments(node).get("transposed"))


def loses_places(node: fx.Node) -> bool:
    """Return True if a grouped convolution loses the same positions of every group, instead of whole groups.

    A few wide groups (ResNeSt has two) should be kept, because there are more channels to select from within them.
    """
    given = arguments(node)
    groups, inputs = int(given["groups"]), shape_of(given["weight"])[1]
    return 1 < groups < inputs and shape_of(given["weight"])[0] > groups and not is_transposed(node)


def is_pointwise(node: fx.Node) -> bool:
    """Return True if an operator works position by position: by torch's tag, or by our list if it has no tag."""
    name = operator_name(node)
    if name == "where":
        return len(node.args) == 3  # with only a condition it returns positions
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or name in UNTAGGED_POINTWISE
