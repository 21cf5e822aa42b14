"""The files that people deploy: compact networks as ONNX, ``.pt2`` and safetensors, each checked before it is kept."""

from depl0.export import onnx, torch_files  # they register themselves
from depl0.export.checked import Exported, write_checked
from depl0.export.int8 import quantize_onnx, quantize_pt2
from depl0.export.onnx import export_onnx
from depl0.export.targets import Request, names, target

__all__ = [
    "Exported",
    "Request",
    "export_onnx",
    "names",
    "onnx",
    "quantize_onnx",
    "quantize_pt2",
    "target",
    "torch_files",
    "write_checked",
]
