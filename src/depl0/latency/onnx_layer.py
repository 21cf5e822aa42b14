"""One convolution as an ONNX file, to be timed in ONNX Runtime: so small that no network has to be exported for it."""

from __future__ import annotations

import numpy as np

from depl0._util.optional import require


def convolution_file(width: int, batch: int, size: int) -> bytes:
    """Return two 3x3 convolutions, one after the other, of so many channels on images of so many pixels a side.

    Two, because ONNX Runtime lays channels out in blocks between convolutions, and it is this that it likes multiples
    for.
    """
    onnx = require("onnx", "onnx", "to time layers in ONNX Runtime", extra="export")
    rng, helper = np.random.default_rng(0), onnx.helper
    shape, kind = [batch, width, size, size], onnx.TensorProto.FLOAT
    weights = [rng.standard_normal((width, width, 3, 3), np.float32) / width for _ in range(2)]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["input", "first"], ["between"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["between"], ["positive"]),
            helper.make_node("Conv", ["positive", "second"], ["output"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        ],
        "convolutions",
        [helper.make_tensor_value_info("input", kind, shape)],
        [helper.make_tensor_value_info("output", kind, shape)],
        [onnx.numpy_helper.from_array(w, name) for w, name in zip(weights, ("first", "second"), strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())
