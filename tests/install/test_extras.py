"""What an installation without extras can do, and what it says where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    "pooch",
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


@pytest.mark.parametrize("package", ["typer", "accelerate", "matplotlib"])
def test_the_command_says_what_to_install(package: str) -> None:
    program = "import runpy; sys.argv = ['depl0', 'recipes']; runpy.run_module('depl0', run_name='__main__')"
    done = run_without((package,), program)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"error: {package} is needed by the command depl0, but not installed. hint: pip install 'depl0[cli]'\n"
    )


@pytest.mark.parametrize(
    ("package", "program", "message"),
    [
        ("accelerate", "import depl0.app.runtime.engine", "accelerate is needed for training, but not installed."),
        ("matplotlib", "import depl0.app.reports.report", "matplotlib is needed for reports, but not installed."),
        (
            "PIL",
            "from depl0.app import data; data.open_data('folder:x')",
            "pillow is needed to decode image files, but",
        ),
    ],
)
def test_a_part_of_the_library_says_what_to_install(package: str, program: str, message: str) -> None:
    done = run_without((package,), program)
    assert f"depl0.errors.NotInstalledError: {message}" in done.stderr
    assert done.stderr.endswith("hint: pip install 'depl0[cli]'\n")
