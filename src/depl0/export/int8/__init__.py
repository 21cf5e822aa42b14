"""Networks in int8: quantised after training, with real images, and kept only if they are worth it."""

from depl0.export.int8.quantize import Quantized, Score, quantize_onnx, quantize_pt2
from depl0.export.int8.quantizer import IMAGES, Run, calibration_inputs

__all__ = ["IMAGES", "Quantized", "Run", "Score", "calibration_inputs", "quantize_onnx", "quantize_pt2"]
