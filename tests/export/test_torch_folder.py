"""A folder that plain PyTorch loads: what is in it, that it computes the same without depl0, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

import depl0
from depl0.app.deploy import export_folder, open_source, push_to_hub
from depl0.app.deploy.source import Source
from depl0.app.deploy.torch_folder import folder as folder_module
from depl0.app.deploy.torch_folder.card import model_card
from depl0.app.deploy.torch_folder.structure import structure_of
from depl0.app.models.spec import build_model
from depl0.errors import ExportError, InputError
from depl0.export import Request, target, write_checked
from depl0.replacements.full_width import FullWidth
from tests.support.compare import call, liven, random_gates
from tests.support.exports import largest_file
from tests.torchvision_shim import import_torchvision

pytestmark = pytest.mark.integrations

GOLDEN = Path(__file__).parents[1] / "golden"
NETWORKS = Path(__file__).parents[1] / "networks"
TINY = f"{NETWORKS / 'golden.py'}:TinyDigits"
FILES = ["README.md", "config.json", "model.py", "model.safetensors"]

# Where the installed torchvision does not fit the installed torch.
SHIM = (Path(__file__).parents[1] / "torchvision_shim.py").read_text()
SHIM += """
try:
    import_torchvision()
except ImportError:
    pass
"""
# Nothing of depl0 can be found: neither its folder nor the finder of an editable installation is on the path.
STRANGER = """
import sys
sys.path = [entry for entry in sys.path if "depl0" not in entry]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.modules["depl0"] = None
try:
    import depl0
except ImportError:
    pass
else:
    raise SystemExit("depl0 can be imported")
sys.path.insert(0, sys.argv[1])
import torch
from model import load
from safetensors.torch import load_file
given = load_file(sys.argv[2])
with torch.no_grad():
    error = (load()(given["images"]) - given["scores"]).abs().max()
print(float(error))
"""


def compact_source(spec: str, shape: tuple[int, ...], folder: Path) -> Source:
    """Prune a network at random, save it, and open it as ``depl0 export`` does."""
    torch.manual_seed(0)
    image = torch.randn(2, *shape)
    host = liven(build_model(spec, 10, shape[0], shape[1]), image)
    gated = depl0.attach(host, image[:1]).eval()
    gated.engine.fix_gates(random_gates(gated.plan.num_gates, 3))
    return open_source(depl0.save(gated.extract(), folder / "small"), spec)


def error_without_depl0(source: Source, folder: Path, tmp_path: Path) -> float:
    images = torch.randn(3, *source.example[0].shape[1:])
    save_file({"images": images, "scores": call(source.module, images)}, tmp_path / "given.safetensors")
    command = [sys.executable, "-I", "-W", "ignore", "-c", STRANGER, folder, tmp_path / "given.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_network_of_ours_loads_without_depl0(tmp_path: Path) -> None:
    source = compact_source("resnet20", (3, 32, 32), tmp_path)
    done = export_folder(source, tmp_path / "out")
    assert sorted(path.name for path in done.path.iterdir()) == sorted([*FILES, "network.py"])
    assert done.size == sum(path.stat().st_size for path in done.path.iterdir())
    code = (done.path / "model.py").read_text() + (done.path / "network.py").read_text()
    assert "import depl0" not in code and "from depl0" not in code and str(tmp_path) not in code
    assert "from network import resnet20\n" in code and "def resnet20(" in code
    assert error_without_depl0(source, done.path, tmp_path) < 1e-4


@pytest.mark.parametrize("spec", ["torchvision:squeezenet1_1", "timm:test_resnet"])
def test_networks_of_libraries_are_built_by_them(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    monkeypatch.setattr(folder_module._Folder, "reader", SHIM + folder_module._Folder.reader)
    done = export_folder(compact_source(spec, (3, 32, 32), tmp_path), tmp_path / "out")
    code = (done.path / "model.py").read_text()
    assert f"import {spec.partition(':')[0]}\n" in code and "class " not in code and done.max_error < 1e-5


def test_network_without_a_block_and_its_card(tmp_path: Path) -> None:
    source = open_source(GOLDEN / "v1" / "blocks", TINY)
    metric = {"name": "accuracy", "unit": "%", "higher_is_better": True}
    summary = {"metric": metric, "dense": {"accuracy": 97.5}, "compact": {"accuracy": 96.25}, "budget": 0.5}
    metadata = {**source.metadata, "depl0.data": "digits", "depl0.class_names": '["a: b", "c"]'}
    source = Source(**{**vars(source), "summary": {**summary, "budget_of": "macs"}, "metadata": metadata})
    done = export_folder(source, tmp_path / "out", 'my "net"')
    config = json.loads((done.path / "config.json").read_text())
    assert config["replaced"]["constant"].keys() == {"first.conv1", "first.conv2"}
    assert config["identities"] == ["first.bn2"]
    card = (done.path / "README.md").read_text()
    assert str(NETWORKS) not in card and "golden.py:TinyDigits" in card
    assert "| accuracy | 97.50 % | 96.25 % |" in card and "- budget: 0.5 of the MACs" in card
    parsed = huggingface_hub.ModelCard(card).data
    assert parsed.library_name == "pytorch" and parsed.datasets == ["digits"]
    [result] = parsed.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 96.25, "digits")


USER = """
import math
import layers as whole
from layers import Scaled as Layer
from torch import nn

UNUSED = math.pi
WIDTHS = [4]
WIDTHS.append(6)


def make(num_classes):
    return nn.Sequential(Layer(1, WIDTHS[0]), nn.ReLU(), Layer(*WIDTHS), nn.Flatten(), nn.Linear(96, num_classes))
"""
LAYERS = '''
import torch
from torch import nn


class Scaled(nn.Module):
    """A convolution, and a buffer that is not saved."""

    def __init__(self, before, after):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3)
        self.norm = nn.BatchNorm2d(after)
        self.register_buffer("scale", torch.arange(1.0, after + 1).view(1, -1, 1, 1), persistent=False)

    def forward(self, x):
        return self.norm(self.conv(x)) * self.scale
'''


def test_files_of_the_user_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    (tmp_path / "nets.py").write_text(USER)
    (tmp_path / "layers.py").write_text(LAYERS)
    spec = f"{tmp_path / 'nets.py'}:make"
    source = compact_source(spec, (1, 8, 8), tmp_path)
    assert structure_of(source.module, source.make()).positions.keys() == {"0.scale", "2.scale"}
    done = export_folder(source, tmp_path / "out")
    assert sorted(path.name for path in done.path.iterdir()) == sorted([*FILES, "nets.py", "layers.py"])
    assert (done.path / "nets.py").read_text() == USER and (done.path / "layers.py").read_text() == LAYERS
    assert error_without_depl0(source, done.path, tmp_path) < 1e-5

    (tmp_path / "model.py").write_text(USER)
    other = Source(**{**vars(source), "spec": f"{tmp_path / 'model.py'}:make"})
    with pytest.raises(ExportError, match=r"model.py cannot be copied: the folder has a model.py of its own"):
        export_folder(other, tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_package_of_the_user_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "my_own_nets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "layers.py").write_text(LAYERS)
    (package / "unused.py").write_text("")
    code = USER.replace("import layers as whole", "from . import layers as whole").replace(
        "from layers", "from .layers"
    )
    (package / "nets.py").write_text(code)
    source = compact_source("my_own_nets.nets:make", (1, 8, 8), tmp_path)
    done = export_folder(source, tmp_path / "out")
    assert sorted(path.name for path in (done.path / "my_own_nets").iterdir()) == [
        "__init__.py",
        "layers.py",
        "nets.py",
    ]
    assert error_without_depl0(source, done.path, tmp_path) < 1e-5


def test_single_file_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(AT_ONCE)
    source = compact_source(f"{tmp_path / 'model.py'}:AtOnce", (1, 8, 8), tmp_path)
    done = export_folder(source, tmp_path / "out")
    assert (done.path / "network.py").read_text() == AT_ONCE


MIXED = """
import torch
import torch.nn.functional as F
from torch import nn


class Standard(nn.Conv2d):
    def forward(self, x):
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-8).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.second = nn.Conv2d(1, 8, 3), Standard(8, 12, 3)
        self.sizes = (4, 8)
        self.left, self.right = nn.Conv2d(4, 16, 1), nn.Conv2d(8, 16, 1)
        self.norm, self.last = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        left, right = F.relu(self.second(F.relu(self.stem(x)))).split(self.sizes, 1)
        x = (self.left(left) + self.right(right)).flatten(2).transpose(1, 2)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(self.last(x).mean(1))
"""


def test_norms_attention_numbers_and_standardised_filters_need_no_depl0(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    source = compact_source(f"{tmp_path / 'mixed.py'}:Mixed", (1, 8, 8), tmp_path)
    done = export_folder(source, tmp_path / "out")
    config = json.loads((done.path / "config.json").read_text())
    replaced = {kind: set(modules) for kind, modules in config["replaced"].items()}
    assert replaced == {"norm": {"norm", "last"}, "attention": {"attention"}, "standardised_conv": {"second"}}
    assert len(config["attributes"][""]["sizes"]) == 2
    code = (done.path / "model.py").read_text()
    assert "import depl0" not in code and "from depl0" not in code and "def recognise" not in code
    request = Request(source.module, source.example)
    assert write_checked(target("onnx"), request, tmp_path / "a.onnx").max_error < 1e-5


AT_ONCE = """
import torch
from torch import nn


class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x):
        weights = self.conv(x.mean((2, 3), keepdim=True).squeeze(-1).transpose(-1, -2))
        return x * weights.transpose(-1, -2).unsqueeze(-1).sigmoid()


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x):
        return self.conv(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)).sigmoid()


class AtOnce(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12)
        self.channels, self.places = Channels(), Places()
        self.second, self.head = nn.Conv2d(12, 8, 3), nn.Linear(8, num_classes)

    def forward(self, x):
        x = self.channels(torch.relu(self.norm(self.first(x))))
        return self.head(torch.relu(self.second(x * self.places(x))).mean((2, 3)))
"""


def test_modules_that_look_at_all_channels_at_once_need_no_depl0(tmp_path: Path) -> None:
    (tmp_path / "at_once.py").write_text(AT_ONCE)
    source = compact_source(f"{tmp_path / 'at_once.py'}:AtOnce", (1, 8, 8), tmp_path)
    assert isinstance(source.module.channels.conv, FullWidth) and isinstance(source.module.places, FullWidth)
    done = export_folder(source, tmp_path / "out")
    config = json.loads((done.path / "config.json").read_text())
    assert config["replaced"]["full_width"].keys() == {"channels.conv", "places"}
    assert len(config["replaced"]["full_width"]["places"]["kept_channels"]) == source.module.first.out_channels < 12
    code = (done.path / "model.py").read_text()
    assert "import depl0" not in code and "from depl0" not in code
    assert error_without_depl0(source, done.path, tmp_path) < 1e-5


WINDOWS = """
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2


def Windows():
    parts = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return SwinTransformer([4, 4], 8, [2, 2], [2, 2], [2, 2], num_classes=3, **parts)
"""


def test_attention_in_windows_needs_no_depl0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()
    monkeypatch.setattr(folder_module._Folder, "reader", SHIM + folder_module._Folder.reader)
    (tmp_path / "windows.py").write_text(WINDOWS)
    source = compact_source(f"{tmp_path / 'windows.py'}:Windows", (3, 16, 16), tmp_path)
    done = export_folder(source, tmp_path / "out")
    config = json.loads((done.path / "config.json").read_text())
    windows = config["replaced"]["window_attention"]
    assert {spec["form"] for spec in windows.values()} == {"cosine windows"} and len(windows) == 4
    code = (done.path / "model.py").read_text()
    assert "import depl0" not in code and "from depl0" not in code and "def described" not in code
    assert done.max_error < 1e-5


def test_nothing_is_left_when_something_fails(tmp_path: Path) -> None:
    source = open_source(GOLDEN / "v1" / "channels", TINY)
    with largest_file(1000), pytest.raises(ExportError, match=r"is full: out needs [\d,]+ bytes\. Nothing is left"):
        export_folder(source, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    other = Source(**{**vars(source), "spec": f"{NETWORKS / 'golden.py'}:Block", "sizes": {}})
    with pytest.raises(ExportError, match="cannot be used by a process without depl0, and is removed"):
        export_folder(other, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(InputError, match="is not empty; --to torch writes a new folder"):
        export_folder(source, tmp_path / "full")
    with pytest.raises(InputError, match="is a file; --to torch writes a folder"):
        export_folder(source, tmp_path / "full" / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("epochs", "said"),
    [({}, "cut out."), ({"search": 0}, "the rest was not trained."), ({"search": 2}, "the rest was trained on.")],
)
def test_a_card_says_of_the_training_what_is_known(epochs: dict[str, int], said: str) -> None:
    config = {"macs": 1, "dense_macs": 2, "params": 1, "dense_params": 2, "input_shapes": [[1, 3]], "version": "0"}
    card = model_card("small", "Net", config, {"epochs": epochs})
    assert said in card and ("trained" in card) == bool(epochs)


class StandIn:
    """A hub on this machine."""

    def __init__(self, token: str) -> None:
        self.token, self.seen = token, []

    def create_repo(self, **options: Any) -> None:
        self.seen.append(("create", self.token, options))

    def upload_folder(self, **options: Any) -> None:
        self.seen.append(("upload", sorted(options["allow_patterns"]), options["repo_id"]))


def test_upload_of_a_saved_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compact.json", "compact.safetensors"):
        (tmp_path / name).write_text("")
    hub = StandIn("secret")
    module = SimpleNamespace(HfApi=lambda token: hub, get_token=lambda: "secret")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    push_to_hub(tmp_path, "me/small")
    assert {"*.json", "*.safetensors"} <= set(hub.seen[1][1]) and "*.py" not in hub.seen[1][1]


def test_upload_to_a_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FILES:
        (tmp_path / name).write_text("")
    hub = StandIn("secret")
    module = SimpleNamespace(HfApi=lambda token: hub, get_token=lambda: "secret")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    assert push_to_hub(tmp_path, "me/small") == "https://huggingface.co/me/small"
    created, uploaded = hub.seen
    assert created == ("create", "secret", {"repo_id": "me/small", "private": True, "exist_ok": True})
    assert uploaded == ("upload", sorted([*FILES, "*.py"]), "me/small")

    def fail(**options: Any) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(hub, "upload_folder", fail)
    with pytest.raises(ExportError, match="could not be uploaded to me/small: ConnectionError: nobody answers"):
        push_to_hub(tmp_path, "me/small")
    module.get_token = lambda: None
    with pytest.raises(InputError, match=r"no token for the Hugging Face Hub\.\nhint: run hf auth login"):
        push_to_hub(tmp_path, "me/small")
    with pytest.raises(InputError, match="OWNER/NAME, got 'small'"):
        push_to_hub(tmp_path, "small")
    (tmp_path / "model.py").unlink()
    with pytest.raises(InputError, match=r"is not an exported folder: model\.py is missing"):
        push_to_hub(tmp_path, "me/small")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (tmp_path / "model.py").write_text("")
    with pytest.raises(InputError, match=r"huggingface_hub is needed .*\nhint: pip install 'depl0\[hub\]'"):
        push_to_hub(tmp_path, "me/small")
