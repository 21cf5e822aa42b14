"""Networks in int8: quantised after training, with real images, and kept only if they are worth it."""

from depl0.export.int8.accept import Quantized, Score, quantize_within, sensitive_layers
from depl0.export.int8.call import quantize_onnx
from depl0.export.int8.deploy import Deployed, Options, export_int8
from depl0.export.int8.onnx import Int8Onnx, OnnxQuantizer
from depl0.export.int8.quantizer import IMAGES, Quantizer, Run, calibration_inputs

__all__ = [
    "IMAGES",
    "Deployed",
    "Int8Onnx",
    "OnnxQuantizer",
    "Options",
    "Quantized",
    "Quantizer",
    "Run",
    "Score",
    "calibration_inputs",
    "export_int8",
    "quantize_onnx",
    "quantize_within",
    "sensitive_layers",
]
