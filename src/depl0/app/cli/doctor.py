"""``depl0 doctor``: versions, hardware, installed and missing packages."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from depl0 import __version__
from depl0._util.optional import install_command
from depl0.app.cli.options import echo

EXTRAS = {
    "cli": ("accelerate", "filelock", "jinja2", "matplotlib", "pydantic", "rich", "tomli-w", "typer"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "openvino": ("openvino",),
    "executorch": ("executorch",),
    "hub": ("huggingface_hub",),
    "transformers": ("transformers",),
    "lightning": ("lightning",),
    "ray": ("ray",),
    "slurm": ("submitit",),
}
"""extra -> packages that it brings"""


def doctor_command() -> None:
    """Print versions, hardware and missing packages."""
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    chosen = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in os.environ else "PyTorch's default"
    rows = {
        "depl0": f"{__version__} in {os.path.dirname(os.path.dirname(os.path.dirname(__file__)))}",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": str(torch.__version__),
        "cpu": f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"{torch.get_num_threads()} ({chosen})",
        "gpus": ", ".join(gpus) or "none",
    }
    missing: dict[str, list[str]] = {}
    for extra, packages in EXTRAS.items():
        versions = {package: _version(package) for package in packages}
        absent = [package for package, version in versions.items() if version is None]
        rows[f"[{extra}]"] = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        if absent:
            missing[extra] = absent
    width = max(map(len, rows))
    for title, text in rows.items():
        echo(f"{title:<{width}}  {text or 'not installed'}")
    for extra, absent in missing.items():
        echo(f"missing: {', '.join(absent)}; {install_command(extra)}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
