"""Export of pruned models to the formats of several runtimes; every file is verified before it is kept.

To add a format, decorate a class in a new file of this folder with :func:`register`.
"""

from depl0.export import onnx, runtimes, torch_files  # imported because they register themselves
from depl0.export.checked import Exported, write_checked
from depl0.export.int8 import quantize_onnx
from depl0.export.onnx import export_onnx
from depl0.export.targets import Request, Target, names, reader_program, register, target

__all__ = [
    "Exported",
    "Request",
    "Target",
    "export_onnx",
    "names",
    "onnx",
    "quantize_onnx",
    "reader_program",
    "register",
    "runtimes",
    "target",
    "torch_files",
    "write_checked",
]
