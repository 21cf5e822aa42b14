"""The files that people deploy: compact networks as ONNX, ``.pt2`` and safetensors, each checked before it is kept."""

from depl0.export import onnx, pt2, safetensors  # they register themselves
from depl0.export.checked import Exported, write_checked
from depl0.export.hub import push_to_hub
from depl0.export.int8 import export_int8, quantize_onnx, quantize_pt2
from depl0.export.onnx import export_onnx
from depl0.export.source import Source, open_source
from depl0.export.targets import Request, names, target
from depl0.export.torch_folder import ExportedFolder, export_folder

__all__ = [
    "Exported",
    "ExportedFolder",
    "Request",
    "Source",
    "export_folder",
    "export_int8",
    "export_onnx",
    "names",
    "onnx",
    "open_source",
    "pt2",
    "push_to_hub",
    "quantize_onnx",
    "quantize_pt2",
    "safetensors",
    "target",
    "write_checked",
]
