"""Networks in int8: quantised after training, with real images, and kept only if they are worth it."""

from depl0.export.int8.accept import Quantized, Score, quantize_within, sensitive_layers
from depl0.export.int8.call import quantize_onnx, quantize_pt2
from depl0.export.int8.onnx import Int8Onnx, OnnxQuantizer
from depl0.export.int8.quantizer import IMAGES, Quantizer, Run, calibration_inputs
from depl0.export.int8.torchao import Int8Pt2, TorchaoQuantizer

__all__ = [
    "IMAGES",
    "Int8Onnx",
    "Int8Pt2",
    "OnnxQuantizer",
    "Quantized",
    "Quantizer",
    "Run",
    "Score",
    "TorchaoQuantizer",
    "calibration_inputs",
    "quantize_onnx",
    "quantize_pt2",
    "quantize_within",
    "sensitive_layers",
]
