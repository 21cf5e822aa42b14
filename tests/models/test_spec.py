"""Networks by a short text: each form builds, and what is wrong with one is said."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from depl0._util.optional import import_torchvision
from depl0.app.models import names
from depl0.app.models.spec import factory
from depl0.errors import InputError

pytestmark = pytest.mark.structures

SIZES = {"num_classes": 7, "in_channels": 3, "image_size": 32}


def message_of(spec: str, **sizes: int) -> str:
    with pytest.raises(InputError) as caught:
        factory(spec, **{**SIZES, **sizes})()
    return str(caught.value)


@pytest.fixture
def write(tmp_path):
    """Write a Python file and give its path."""

    def write(text: str, name: str = "nets.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def nothing_is_left_on_the_path(monkeypatch):
    before = list(sys.path)
    modules = set(sys.modules)
    yield
    assert sys.path == before
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and "nets" in name:
            monkeypatch.delitem(sys.modules, name)


# -- built-in networks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in names() if n not in ("vgg16", "resnet50") and "dep_l0" not in n])
def test_every_built_in_network_takes_the_sizes_of_the_data(name):
    network = factory(name, num_classes=7, in_channels=2, image_size=20)().eval()
    assert network(torch.zeros(1, 2, 20, 20)).shape == (1, 7)


def test_unknown_built_in_networks():
    assert "got 'resnet57' instead.\nhint: did you mean resnet56 or resnet50 or resnet20?" in message_of("resnet57")
    assert "hint: write torchvision:resnet18, timm:resnet18, my_package.nets:make" in message_of("Transformer")


# -- torchvision and timm ----------------------------------------------------------------------------------------------


@pytest.fixture
def torchvision():
    return import_torchvision()


def test_torchvision_networks(torchvision):
    network = factory("torchvision:resnet18", **SIZES)()
    assert isinstance(network, torchvision.models.ResNet)
    assert network.fc.out_features == 7
    assert message_of("torchvision:resnet81") == (
        "there is no torchvision model called 'resnet81'.\nhint: did you mean resnet18 or resnet152 or resnet101?"
    )
    assert "takes images of 3 channels, but the data has 1" in message_of("torchvision:resnet18", in_channels=1)


def test_timm_networks(torchvision):
    network = factory("timm:mobilenetv3_small_050", num_classes=7, in_channels=1, image_size=32)().eval()
    assert network(torch.zeros(1, 1, 32, 32)).shape == (1, 7)
    message = message_of("timm:mobilenetv3_smal_100")
    assert message.startswith("there is no timm model called 'mobilenetv3_smal_100'.\nhint: did you mean")
    assert "mobilenetv3_small_100" in message


# -- the user's own ----------------------------------------------------------------------------------------------------


NETS = """
from torch import nn

def make(num_classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, num_classes))

def sizes(*, in_channels, num_classes, image_size):
    network = nn.Identity()
    network.sizes = (num_classes, in_channels, image_size)
    return network

class Net(nn.Linear):
    def __init__(self, num_classes=3):
        super().__init__(5, num_classes)

def keywords(**others):
    assert not others
    return nn.Identity()

def needy(depth, num_classes):
    return nn.Identity()

def text():
    return "a network"

def fails(num_classes):
    number = num_classes
    raise KeyError(f"no {number}")

def leaves():
    raise SystemExit(3)
"""


def test_a_callable_of_a_file(write):
    path = write(NETS)
    network = factory(f"{path}:make", **SIZES)()
    assert network(torch.zeros(2, 3, 4, 4)).shape == (2, 7)
    assert factory(f"{path}:sizes", **SIZES)().sizes == (7, 3, 32)
    assert factory(f"{path}:Net", **SIZES)().out_features == 7
    assert isinstance(factory(f"{path}:keywords", **SIZES)(), nn.Identity)


def test_a_file_is_loaded_once(write, tmp_path, monkeypatch):
    path = write(NETS)
    first = factory(f"{path}:Net", **SIZES)()
    monkeypatch.chdir(tmp_path)
    second = factory("nets.py:Net", **SIZES)()
    assert type(first) is type(second)
    assert "nets" not in sys.modules
    (tmp_path / "other").mkdir()
    write(NETS, "other/nets.py")
    assert type(factory("other/nets.py:Net", **SIZES)()) is not type(first)


def test_a_callable_of_a_module(write, tmp_path, monkeypatch):
    (tmp_path / "nets_package").mkdir()
    write("", "nets_package/__init__.py")
    write(NETS, "nets_package/nets.py")
    monkeypatch.chdir(tmp_path)  # as with python -m, the folder one is in counts
    assert factory("nets_package.nets:Net", **SIZES)().out_features == 7
    assert "there is no module nets_package.other." in message_of("nets_package.other:make")
    assert "there is no module no_such_package." in message_of("no_such_package.nets:make")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("import torch\ndef make(:\n", "line 2: SyntaxError: "),
        ("import sys\nsys.exit('usage: nets.py FILE')\n", "line 2: SystemExit: usage: nets.py FILE"),
    ],
)
def test_an_error_in_the_file_says_file_and_line(write, text, place):
    path = write(text)
    assert f"model '{path}:make' failed at {path.resolve()}, {place}" in message_of(f"{path}:make")
    # A file that failed is read again once it is mended.
    write("from torch import nn\ndef make():\n    return nn.Identity()\n# and a line more\n")
    assert isinstance(factory(f"{path}:make", **SIZES)(), nn.Identity)


def test_an_error_in_the_callable_says_file_and_line(write):
    path = write(NETS)
    line = NETS.splitlines().index('    raise KeyError(f"no {number}")') + 1
    assert message_of(f"{path}:fails") == (
        f"model '{path}:fails' failed at {path.resolve()}, line {line}: KeyError: 'no 7'"
    )
    assert ": SystemExit: 3" in message_of(f"{path}:leaves")


def test_callables_that_cannot_be_used(write, tmp_path):
    path = write(NETS)
    assert message_of(f"{path}:mak") == (
        f"model '{path}:mak' must name a callable of {path.resolve()}, found nothing.\nhint: did you mean make?"
    )
    assert "cannot be called: missing a required argument: 'depth'" in message_of(f"{path}:needy")
    assert message_of(f"{path}:text") == f"model '{path}:text' must return a torch.nn.Module, got a str instead."
    assert f"needs the file {tmp_path / 'none.py'}; found no file there." in message_of(f"{tmp_path}/none.py:make")


def test_data_that_does_not_know_its_outputs(write):
    path = write(NETS)
    sizes = {"num_classes": None, "in_channels": 3, "image_size": 32}
    for spec in ("resnet20", "torchvision:resnet18", "timm:resnet18"):
        with pytest.raises(InputError, match=f"model '{spec}' is built for images and a number of outputs"):
            factory(spec, **sizes)
    assert factory(f"{path}:Net", **sizes)().out_features == 3  # its own default
    assert "missing a required argument: 'num_classes'" in message_of(f"{path}:make", num_classes=None)
