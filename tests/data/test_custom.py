import re
import sys

import pytest
import torch

from depl0.app.data import Data, DataSettings, open_data
from depl0.app.models.spec import build_model
from depl0.app.tasks import find_task
from depl0.errors import DataError, InputError

PAIRS = """
import numpy, torch
images = torch.arange(4 * 2 * 3 * 3).view(4, 2, 3, 3).to(torch.uint8)
labels = [0, 1, 2, 1]
def make():
    return (images, labels), (images[:2].numpy(), numpy.array(labels[:2]))
number = 3
def fails(): raise KeyError("lost")
def nothing(): return None
def needy(folder): return None
def floats(): return (images / 255, labels), (images, labels)
def strings(): return (images, ["a", "b", "c", "d"]), (images, labels)
def negative(): return (images, [0, 1, -1, 2]), (images, labels)
def unseen(): return (images, labels), (images, [0, 1, 2, 3])
def empty(): return (images[:0], []), (images, labels)
"""


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    return path


def test_arrays_of_ones_own(pairs):
    data = open_data(f"{pairs}:make", DataSettings(batch_size=4, augment="none"))
    assert (data.info.name, data.info.num_classes, data.info.image_shape) == (f"{pairs}:make", 3, (2, 3, 3))
    ((images, _),) = data.train.epoch(0)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(2))
    ((images, labels),) = data.test.epoch(0)
    assert images.shape == (2, 2, 3, 3)
    assert labels.tolist() == [0, 1]


def test_a_module_in_the_current_folder(pairs, monkeypatch):
    package = pairs.parent / "package_of_mine"
    package.mkdir()
    pairs.rename(package / "data.py")
    monkeypatch.chdir(pairs.parent)
    before = list(sys.path)
    assert open_data("package_of_mine.data:make").info.train_size == 4
    assert sys.path == before


def test_a_relative_path(pairs, monkeypatch):
    monkeypatch.chdir(pairs.parent)
    assert open_data("pairs.py:make").info.train_size == 4


def test_two_files_of_one_name(pairs, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "pairs.py").write_text(PAIRS.replace("labels = [0, 1, 2, 1]", "labels = [0, 1, 8, 1]"))
    assert open_data(f"{other / 'pairs.py'}:make").info.num_classes == 9
    assert open_data(f"{pairs}:make").info.num_classes == 3


def test_settings_and_target_are_passed_if_wanted(tmp_path):
    path = tmp_path / "whole.py"
    path.write_text(
        "from depl0.app.data import open_data\n"
        "def make(settings, rank, *, world, device='x'):\n"
        "    return open_data('digits', settings, device, rank, world)\n"
    )
    data = open_data(f"{path}:make", DataSettings(batch_size=10), rank=1, world=2)
    assert isinstance(data, Data)
    assert len(next(data.train.epoch(0))[1]) == 5


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("missing", InputError, "data '{path}:missing' must name a callable of {path}, found nothing."),
        ("number", InputError, "data '{path}:number' must name a callable of {path}, found a int."),
        ("fails", InputError, "data '{path}:fails' failed at {path}, line 8: KeyError: 'lost'"),
        ("needy", InputError, "data '{path}:needy' cannot be called: missing a required argument: 'folder'"),
        (
            "nothing",
            DataError,
            "{path}:nothing must give ((train_images, train_labels), (test_images, test_labels)) or",
        ),
        ("floats", DataError, "The training images of {path}:floats must be uint8 of shape"),
        ("strings", DataError, "of tensors or arrays: "),
        ("negative", DataError, "training labels of {path}:negative must be from 0 to 2, got -1 for image 2 instead."),
        ("unseen", DataError, "The labels of the test images of {path}:unseen must be from 0 to 2, got 3 for image 3"),
        ("empty", DataError, "The training images of {path}:empty must be at least one"),
    ],
)
def test_wrong_functions_are_refused(pairs, name, kind, text):
    with pytest.raises(kind, match=re.escape(text.format(path=pairs))):
        open_data(f"{pairs}:{name}")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"needs the file .*nowhere\.py; found no file there"):
        open_data(f"{tmp_path / 'nowhere.py'}:make")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("def", "SyntaxError"),
        ("1 / 0", "ZeroDivision"),
    ],
)
def test_code_that_cannot_run_is_named(tmp_path, monkeypatch, content, text):
    name = f"broken_{abs(hash(content))}"
    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"data '{name}.py:make' failed at .*{name}.py, line 1: .*{text}"):
        open_data(f"{name}.py:make")
    with pytest.raises(InputError, match=f"data '{name}:make' failed at .*{name}.py, line 1: .*{text}"):
        open_data(f"{name}:make")
    assert not [module for module in sys.modules if module.startswith(name)]


def test_a_file_with_network_data_and_task_is_run_once(tmp_path):
    path = tmp_path / "everything.py"
    path.write_text(
        f"open({str(tmp_path / 'log')!r}, 'a').write('run ')\n"
        "from torch import nn, zeros, uint8\n"
        "from depl0.app.tasks.regression import Regression\n"
        "def data(): return ((zeros(4, 1, 2, 2, dtype=uint8), zeros(4)),) * 2\n"
        "def net(): return nn.Linear(1, 1)\n"
    )
    assert open_data(f"{path}:data").info.num_outputs == 1
    build_model(f"{path}:net", None, 1, 2)
    find_task(f"{path}:Regression")
    assert (tmp_path / "log").read_text() == "run "


def test_a_module_that_is_missing_in_a_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "package_with_less").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no module package_with_less\.data"):
        open_data("package_with_less.data:make")
    with pytest.raises(InputError, match="The data must be one of"):
        open_data("package_of_nobody.data:make")
