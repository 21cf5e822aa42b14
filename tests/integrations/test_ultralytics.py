"""Prune, train, save and export a YOLO: of Ultralytics where it is installed, else of the same shape."""

from __future__ import annotations

import copy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.integrations import ultralytics as pruning
from depl0.surgery.record import record_of
from tests.networks.blocks import AttentiveDetector

pytestmark = pytest.mark.integrations

# -- without Ultralytics: an object with the same doors ----------------------------------------------------------------


class Trainer:
    """Builds the dense network again, as Ultralytics' own does, unless ``get_model`` says otherwise."""

    def __init__(self, overrides: dict[str, Any], _callbacks: Any = None) -> None:
        self.data = {"nc": overrides.get("nc", 3)}

    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> nn.Module:
        return _network()


class Detector(AttentiveDetector):
    """Has more outputs in evaluation mode, as every YOLO has."""

    def forward(self, x: Tensor) -> Any:
        found = super().forward(x)
        return found if self.training else (found, 2 * found)


class Yolo(nn.Module):
    task, task_map = "detect", {"detect": {"trainer": Trainer}}

    def __init__(self) -> None:
        super().__init__()
        self.overrides: dict[str, Any] = {}
        self.predictor = self.trainer = None
        self.model = _network()

    def train(self, trainer: Any = None, **arguments: Any) -> str:
        if not isinstance(trainer, bool):
            self.trainer = trainer(overrides=arguments)
            self.model = self.trainer.get_model()
        return "metrics"

    def val(self) -> float:
        self.model.stem.norm = nn.Identity()  # folds in place
        return 0.5

    def predict(self, source: list[Tensor], imgsz: int, **_: Any) -> Any:
        self.model.eval()(torch.zeros(1, 3, 32, 32))  # a warm-up
        for image in source:
            yield self.model(nn.functional.interpolate(image, imgsz))

    def save(self, path: str) -> None:
        Path(path).write_text("\n".join(f"{k} {tuple(v.shape)}" for k, v in self.model.state_dict().items()))
        self.saved = copy.deepcopy(self.model)


def _network() -> nn.Module:
    torch.manual_seed(0)
    network = Detector()
    network.names = {0: "a", 1: "b", 2: "c"}
    return network


@pytest.fixture(scope="module")
def small() -> Yolo:
    images = [torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    return pruning.prune(Yolo(), images, budget=0.7, recover=2, size=32)  # type: ignore[no-any-return]


def _widths(network: nn.Module) -> list[int]:
    return [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]


def test_the_compact_network_is_trained_not_the_dense_one(small: Yolo) -> None:
    before, record = _widths(small.model), record_of(small.model)
    assert pruning.train(small, epochs=1) == "metrics"
    assert _widths(small.model) == before != _widths(_network())
    assert record is not None and record_of(small.model) is record


def test_what_the_trainer_gets_holds_nothing_of_depl0(small: Yolo) -> None:
    network = pruning._trainer(small, pruning._for_ultralytics(small.model))({}).get_model()
    assert record_of(network) is None and record_of(small.model) is not None


def test_measuring_keeps_the_norms(small: Yolo) -> None:
    assert small.val() == 0.5
    assert isinstance(small.model.stem.norm, nn.BatchNorm2d)


def test_images_are_those_that_the_network_gets(small: Yolo, monkeypatch: pytest.MonkeyPatch) -> None:
    source = [torch.full((1, 3, 32, 32), float(n)) for n in range(5)]
    batches = pruning.images(small, source, count=3, batch=2, imgsz=32)
    assert [float(image.mean()) for batch in batches for image in batch] == [0.0, 1.0, 2.0]
    monkeypatch.setitem(small.overrides, "imgsz", 64)  # as in the file of a trained network
    assert pruning.images(small, source)[0].shape == (5, 3, 64, 64)
    with pytest.raises(depl0.errors.InputError, match="no images"):
        pruning.images(small, [])


def test_a_file_has_nothing_of_depl0_in_it(small: Yolo, tmp_path: Path) -> None:
    pruning.save(small, tmp_path / "small.pt")
    assert len((tmp_path / "small.pt").read_text().splitlines()) == len(small.model.state_dict())
    constant = copy.copy(small)
    constant._modules = dict(small._modules)
    constant.model = nn.Sequential(small.model, type("Constant", (nn.Module,), {"__module__": "depl0.replacements"})())
    with pytest.raises(depl0.errors.InputError, match="1 is a module of depl0"):
        pruning.save(constant, tmp_path / "other.pt")


def test_what_cannot_work_is_refused(small: Yolo) -> None:
    with pytest.raises(depl0.errors.InputError, match="3 classes, the data set has 80"):
        pruning.train(copy.copy(small), nc=80)
    with pytest.raises(depl0.errors.InputError, match="one device"):
        pruning.train(small, device=[0, 1])
    with pytest.raises(depl0.errors.InputError, match="Expected a YOLO"):
        pruning.train(nn.Linear(2, 2))


# -- with Ultralytics (make yolo) --------------------------------------------------------------------------------------

real = pytest.mark.skipif(find_spec("ultralytics") is None, reason="ultralytics is not installed: make yolo")
TINY = """
nc: 3
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, C2f, [16, True]]
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, C3k2, [32, True]]
head:
  - [[2, 4], 1, Detect, [nc]]
"""


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a training needs, with a data set of drawn shapes."""
    monkeypatch.setenv("YOLO_AUTOINSTALL", "false")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from yolo import CLASSES, draw

    for split in ("train", "val"):
        draw(tmp_path / "images" / split, 16, 64, np.random.default_rng(0))
    data = tmp_path / "data.yaml"
    data.write_text(f"path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: {CLASSES}\n")
    (tmp_path / "tiny.yaml").write_text(TINY)
    return {"data": str(data), "imgsz": 64, "workers": 0, "plots": False, "verbose": False, "project": str(tmp_path)}


@real
def test_prune_train_save_open_and_export(arguments: dict[str, Any], tmp_path: Path) -> None:
    from ultralytics import YOLO

    yolo = YOLO(tmp_path / "tiny.yaml")
    yolo.train(epochs=1, batch=8, **arguments)
    batches = pruning.images(yolo, str(tmp_path / "images" / "train"))
    assert [batch.shape for batch in batches] == [(16, 3, 64, 64)] and 0 <= float(batches[0].min()) < float(
        batches[0].max()
    ) <= 1
    small = pruning.prune(yolo, batches, budget=0.5, recover=2, quiet=True)
    widths = _widths(small.model)
    assert small.val(**{k: v for k, v in arguments.items() if k != "project"}).box.map >= 0
    pruning.train(small, epochs=1, batch=8, **arguments)
    assert _widths(small.model) == widths and depl0.info(small.model).macs_left <= 0.5
    pruning.save(small, tmp_path / "small.pt")
    opened = YOLO(tmp_path / "small.pt")
    assert _widths(opened.model) == widths
    (result,) = opened.predict(str(tmp_path / "images" / "val" / "0.png"), imgsz=64, verbose=False)
    assert result.boxes is not None
    assert Path(small.export(format="onnx", imgsz=64, simplify=False)).is_file()


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["yolov9t", "yolo12n", "yolov8n-seg"],
)
def test_every_generation_and_task(name: str) -> None:
    from ultralytics import YOLO

    torch.manual_seed(0)
    yolo = YOLO(f"{name}.yaml")
    small = pruning.prune(yolo, [torch.rand(8, 3, 64, 64)], budget=0.5, recover=2, quiet=True)
    assert depl0.info(small.model).macs_left <= 0.5
    assert "depl0" not in {type(module).__module__.partition(".")[0] for module in small.model.modules()}


@real
@pytest.mark.slow
def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], capsys: Any
) -> None:
    from yolo import main

    monkeypatch.setattr(
        sys,
        "argv",
        ["yolo.py", "--images", "16", "--epochs", "1", "--size", "64", "--network", str(tmp_path / "tiny.yaml")],
    )
    main()
    assert "% of the MACs" in capsys.readouterr().out
