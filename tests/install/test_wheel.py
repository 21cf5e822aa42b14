"""A wheel works outside the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, depl0
from depl0.app import models
assert depl0.__file__.startswith(sys.argv[1]), depl0.__file__
compact = depl0.attach(models.build("lenet5"), torch.zeros(2, 1, 28, 28)).extract()
depl0.save(compact, "small")
depl0.load("small", lambda: models.build("lenet5"))
from importlib import resources
assert resources.files("depl0.app.reports").joinpath("page", "report.html").is_file()
from depl0.app.cli.app import main
raise SystemExit(main(["recipes"]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from a copy of the repository."""
    return build(tmp_path_factory.mktemp("wheel"), "source")


def build(folder: Path, name: str) -> Path:
    """Build a wheel offline, as ``make wheel`` does."""
    source = folder / name
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    words = "wheel --quiet --no-deps --no-index --no-build-isolation --disable-pip-version-check --wheel-dir"
    command = [sys.executable, "-m", "pip", *words.split(), str(folder), str(source)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    folder = wheel.parent / "installed"
    words = f"install --quiet --no-deps --no-index --no-compile --disable-pip-version-check --target {folder} {wheel}"
    subprocess.run([sys.executable, "-m", "pip", *words.split()], check=True, cwd=wheel.parent)
    return folder


def test_it_works_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", USE, str(installed)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "resnet56-cifar10" in done.stdout


def test_the_page_of_a_package_index(wheel: Path) -> None:
    """It claims the Python versions that ruff and mypy check, and has no link that works in the repository alone."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        page = archive.read(name).decode()
    settings = (ROOT / "pyproject.toml").read_text()
    (least, *_) = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', settings)
    assert f"Requires-Python: >={least}\n" in page
    assert f'target-version = "py{least.replace(".", "")}"' in settings and f'python_version = "{least}"' in settings
    assert "depl0 removes whole channels" in page
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", page) == []


def test_a_second_build_is_the_same_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    """In another folder, by somebody with other permissions, later."""
    before = os.umask(0o077)
    try:
        again = build(tmp_path, "elsewhere")
    finally:
        os.umask(before)
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_a_bill_of_materials_is_inside(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        bill = json.loads(archive.read("depl0-0.1.0.dist-info/sboms/depl0.cdx.json"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    own, parts = bill["metadata"]["component"], {part["name"]: part for part in bill["components"]}
    assert (own["name"], own["version"], own["licenses"]) == ("depl0", "0.1.0", [{"license": {"id": "Apache-2.0"}}])
    required = {name for name, part in parts.items() if part["scope"] == "required"}
    assert required == {"numpy", "safetensors", "torch"}
    wanted = [f'typer>=0.12; extra == "{extra}"' for extra in ("cli", "export")]
    assert parts["typer"]["properties"] == [{"name": "python:requires-dist", "value": value} for value in wanted]
    refs = [part["bom-ref"] for part in bill["components"]]
    assert len(set(refs)) == len(refs) and bill["dependencies"] == [{"ref": own["bom-ref"], "dependsOn": refs}]
