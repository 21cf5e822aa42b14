"""What an installation without extras can do, and what it says where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

import depl0
from depl0._util.optional import install_command
from tests.support.without import run_without

pytestmark = pytest.mark.processes

# filelock is not among them: torch itself needs it.
EXTRAS = (
    "PIL",
    "accelerate",
    "click",
    "jinja2",
    "lightning",
    "markupsafe",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "psutil",
    "pytorch_lightning",
    "requests",
    "rich",
    "scipy",
    "sklearn",
    "tensorboard",
    "timm",
    "tomli_w",
    "torchvision",
    "transformers",
    "typer",
)

CORE = """
import torch, depl0
from depl0.app import models

model = models.build("lenet5")
example = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
gated = depl0.attach(model, example)
compact = gated.extract()
depl0.save(compact, FOLDER)
again = depl0.load(FOLDER, lambda: models.build("lenet5"))
assert torch.equal(again.eval()(example), compact.eval()(example))
assert not [name for name in sys.modules if name.partition(".")[0] in HIDDEN]
"""


def test_the_core_needs_torch_numpy_and_safetensors_alone(tmp_path: Path) -> None:
    done = run_without(EXTRAS, CORE.replace("FOLDER", repr(str(tmp_path / "small"))))
    assert done.returncode == 0, done.stderr


def test_the_version_needs_no_extra() -> None:
    program = "import runpy; sys.argv = ['depl0', '--version']; runpy.run_module('depl0', run_name='__main__')"
    done = run_without(EXTRAS, program)
    assert (done.returncode, done.stdout) == (0, f"depl0 {depl0.__version__}\n"), done.stderr


EXPORT = """
import torch, depl0
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))

if __name__ == "__main__":
    sys.modules["net"] = sys.modules["__main__"]
    depl0.save(depl0.attach(make(), torch.zeros(1, 3, 4, 4)).extract(), "small")
    sys.argv = ["depl0", "export", "small", "--to", "onnx", "--model", "net:make"]
    from depl0.__main__ import main
    code = main()
    assert not [name for name in sys.modules if name.partition(".")[0] in HIDDEN]
    sys.exit(code)
"""


def test_the_extra_export_is_enough_to_export(tmp_path: Path) -> None:
    brings = {"click", "onnx", "onnxruntime", "onnxscript", "tomli_w", "typer"}
    done = run_without(
        tuple(package for package in EXTRAS if package not in brings),
        f"import os; os.chdir({str(tmp_path)!r})\n{EXPORT}",
    )
    assert done.returncode == 0, done.stderr
    assert "small.onnx: " in done.stdout and (tmp_path / "small.onnx").is_file()


def test_the_command_says_what_to_install() -> None:
    program = "import runpy; sys.argv = ['depl0', 'recipes']; runpy.run_module('depl0', run_name='__main__')"
    done = run_without(("typer",), program)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"error: typer is needed by the command depl0, but not installed.\nhint: {install_command('cli')}\n"
    )


@pytest.mark.parametrize(
    ("package", "program", "purpose", "extra"),
    [
        (
            "PIL",
            "from depl0.app import data; data.open_data('folder:x')",
            "pillow is needed to read image",
            "cli",
        ),
        (
            "lightning pytorch_lightning",
            "import depl0.integrations.lightning",
            "lightning is needed for depl0.integrations.lightning",
            "lightning",
        ),
    ],
)
def test_a_part_of_the_library_says_what_to_install(package: str, program: str, purpose: str, extra: str) -> None:
    done = run_without(tuple(package.split()), program)
    assert f"depl0.errors.NotInstalledError: {purpose}" in done.stderr
    assert done.stderr.endswith(f", but not installed.\nhint: {install_command(extra)}\n")
