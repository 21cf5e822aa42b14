"""Weights are loaded whole or not at all, and a file cannot run code; published weights, and errors without them."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - to write the files that must be refused
import urllib.error
import urllib.request

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from depl0._util.optional import import_torchvision
from depl0.app.models import weights
from depl0.app.models.weights import NewHead, load_weights, published_weights
from depl0.errors import InputError

save = torch.save  # noqa: TID251 - the files that users have


def network(classes: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, classes))


@pytest.fixture
def source():
    torch.manual_seed(1)
    model = network()
    with torch.no_grad():
        for buffer in model.buffers():
            buffer.add_(3)
    return model


@pytest.fixture
def target():
    torch.manual_seed(2)
    return network()


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)


def refused(model: nn.Module, path, **options) -> str:
    """Load a file that must be refused; return the error's text, after a look at the network."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load_weights(model, path, **options)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    return str(caught.value)


def write(path, content, name):
    file = path / name
    save_file(content, file) if name.endswith(".safetensors") else save(content, file)
    return file


@pytest.mark.parametrize("name", ["w.safetensors", "W.PTH", "w.pth.tar"])
def test_each_kind_of_file(tmp_path, source, target, name):
    parameters = list(target.parameters())
    load_weights(target, write(tmp_path, source.state_dict(), name))
    assert same(target, source)
    assert all(now is before for now, before in zip(target.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in target.parameters())


@pytest.mark.parametrize(("key", "prefix"), [("state_dict", ""), ("model", "module.")])
def test_checkpoints_of_training_programs(tmp_path, source, target, key, prefix):
    state = {prefix + name: value for name, value in source.state_dict().items()}
    load_weights(target, write(tmp_path, {"epoch": 3, "optimizer": {"state": {}}, key: state}, "w.pth"))
    assert same(target, source)


def test_a_prefix_that_belongs_to_the_network(tmp_path, source):
    file = write(tmp_path, {f"module.{name}": value for name, value in source.state_dict().items()}, "w.safetensors")
    wrapped = nn.Module()
    wrapped.module = network()
    load_weights(wrapped, file)
    assert same(wrapped.module, source)


def test_half_precision_weights_and_missing_counters(tmp_path, source, target):
    state = {name: value.half() for name, value in source.state_dict().items()}
    load_weights(target, write(tmp_path, state, "w.safetensors"))
    assert all(parameter.dtype == torch.float32 for parameter in target.parameters())
    assert torch.equal(target[0].weight, source[0].weight.half().float())
    assert (target[1].num_batches_tracked.dtype, int(target[1].num_batches_tracked)) == (torch.int64, 3)
    del state["1.num_batches_tracked"]
    target[1].num_batches_tracked.fill_(5)
    load_weights(target, write(tmp_path, state, "w.pt"))
    assert target[1].num_batches_tracked == 5


def test_a_tensor_with_two_names_needs_one(tmp_path):
    def tied():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    source, target = tied(), tied()
    state = source.state_dict()
    del state["1.weight"]
    load_weights(target, write(tmp_path, state, "w.safetensors"))
    assert same(target, source)
    del state["0.weight"]
    assert "2 missing (0.weight, 1.weight)" in refused(target, write(tmp_path, state, "v.safetensors"))


def test_keys_that_do_not_fit_are_named(tmp_path, target):
    state = network(classes=10).state_dict()
    state["extra"] = torch.zeros(1)
    del state["0.weight"], state["0.bias"], state["1.running_mean"], state["1.running_var"]
    file = write(tmp_path, state, "w.safetensors")
    assert refused(target, file) == (
        f"weights file {file} does not fit the network: "
        "4 missing (0.weight, 0.bias, 1.running_mean and 1 more), 1 extra (extra), "
        "2 misshapen (3.bias: 10 in the file, 4 in the network; 3.weight: 10×8 in the file, 4×8 in the network).\n"
        "hint: pass the network that was trained, with the same number of classes. Nothing was loaded."
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(1), "1 in the file"),  # would broadcast
        (torch.zeros(4, dtype=torch.int8), "4 of int8 in the file"),
        (torch.zeros(4, dtype=torch.complex64), "4 of complex64 in the file"),
    ],
)
def test_one_wrong_entry_keeps_all_others_out(tmp_path, source, target, value, words):
    state = {**source.state_dict(), "3.bias": value}
    assert f"1 misshapen (3.bias: {words}, 4 in the network)" in refused(target, write(tmp_path, state, "w.pt"))


def test_the_meta_device_has_nothing_to_load_into(tmp_path, source):
    with torch.device("meta"):
        empty = network()
    with pytest.raises(InputError, match="cannot be loaded into a network on the meta device"):
        load_weights(empty, write(tmp_path, source.state_dict(), "w.pt"))


# -- files that cannot be read -----------------------------------------------------------------------------------------


def test_files_that_are_not_there(tmp_path, target):
    assert refused(target, tmp_path / "none.pt") == f"weights file {tmp_path / 'none.pt'} does not exist."
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "w.onnx").write_bytes(b"x")
    for name in ("folder.pt", "w.onnx"):
        assert "must be a file that ends in .safetensors, .pt or .pth.\nhint: save" in refused(target, tmp_path / name)


@pytest.mark.parametrize("kept", [0, 5, 100, -10])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_truncated_files(tmp_path, source, target, name, kept):
    file = write(tmp_path, source.state_dict(), name)
    file.write_bytes(file.read_bytes()[:kept])
    assert f"weights file {file} is damaged or " in refused(target, file)


@pytest.mark.parametrize("kept", [100, 300, -100])
def test_truncated_files_of_the_old_format(tmp_path, source, target, kept):
    file = tmp_path / "old.pth"
    save(source.state_dict(), file, _use_new_zipfile_serialization=False)
    file.write_bytes(file.read_bytes()[:kept])
    assert f"weights file {file} is " in refused(target, file)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
@pytest.mark.parametrize("content", [b"hello world\n" * 4, b"\xff" * 1000])
def test_files_of_something_else(tmp_path, target, name, content):
    (tmp_path / name).write_bytes(content)
    assert f"weights file {tmp_path / name} is damaged or " in refused(target, tmp_path / name)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.zeros(2)], "got a list instead"),
        ({"state_dict": {}}, "got a dict with no entries instead"),
        ({"a": 1, "b": 2, 3: 3, "d": 4}, "got a dict with 'a', 'b', 3 and 1 more instead.\nhint: a checkpoint's state"),
    ],
)
def test_files_without_a_state_dict(tmp_path, target, content, found):
    assert f"must hold a state dict of tensors, {found}" in refused(target, write(tmp_path, content, "w.pt"))


class Payload:
    """Becomes a call of ``os.system`` when a careless program unpickles it."""

    def __init__(self, trace) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "the-payload-ran"


def test_the_payload_is_a_real_one(tmp_path, trace):
    pickle.loads(pickle.dumps(Payload(trace)))
    assert trace.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_would_run_code_is_refused(tmp_path, source, target, trace, zipped):
    file = tmp_path / "w.pt"
    content = {**source.state_dict(), "payload": Payload(trace)}
    save(content, file, _use_new_zipfile_serialization=zipped)
    assert refused(target, file) == (
        f"weights file {file} is refused: it holds posix.system, which would run code when it is read. "
        "Only tensors are read.\n"
        "hint: save the state dict alone where the file comes from, with safetensors.torch.save_file."
    )
    file.write_bytes(pickle.dumps(Payload(trace)))
    assert f"weights file {file} is " in refused(target, file)
    assert not trace.exists()


# -- another number of classes -----------------------------------------------------------------------------------------


def test_a_new_head_for_other_classes(tmp_path, source, target):
    file = write(tmp_path, source.state_dict(), "w.safetensors")
    model = network(classes=7)
    head = model[3].weight.clone()
    assert load_weights(model, file, strict=False) == NewHead(("3",), before=4, now=7)
    assert same(model[:3], source[:3]) and torch.equal(model[3].weight, head)
    assert "misshapen" in refused(model, file)
    assert load_weights(target, file, strict=False) is None and same(target, source)


def test_a_backbone_without_a_head(tmp_path, source):
    backbone = {key: value for key, value in source.state_dict().items() if not key.startswith("3")}
    for extra in ({}, {"classifier.weight": torch.zeros(9, 8), "classifier.bias": torch.zeros(9)}):
        file = write(tmp_path, {**backbone, **extra}, "w.safetensors")
        model = network()
        assert load_weights(model, file, strict=False) == NewHead(("3",), before=None, now=4)
        assert same(model[:3], source[:3])
        assert "2 missing (3.weight, 3.bias)" in refused(network(), file)


@pytest.mark.parametrize(
    "other",
    [
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 4)),  # narrower
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4)),  # other images
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 4)),  # other layers
        nn.Linear(8, 4),  # another network
    ],
)
def test_another_network_is_not_a_new_head(tmp_path, source, other):
    file = write(tmp_path, source.state_dict(), "w.safetensors")
    assert "does not fit the network" in refused(other, file, strict=False)


# -- published weights -------------------------------------------------------------------------------------------------


def test_without_a_connection_the_error_has_the_file_to_fetch(monkeypatch, tmp_path) -> None:
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("Name or service not known")

    import_torchvision()
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    monkeypatch.setattr(weights, "_is_cached", lambda repository: False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    tagged = "mobilenetv2_050.lamb_in1k"
    for spec, file in (
        ("torchvision:resnet18", "https://download.pytorch.org/models/resnet18-f37072fd.pth"),
        (f"timm:{tagged}", f"https://huggingface.co/timm/{tagged}/resolve/main/model.safetensors"),
    ):
        with pytest.raises(
            InputError, match=f"the trained weights of {spec} cannot be downloaded: .*Name or"
        ) as caught:
            published_weights(spec, 3)
        assert f"download {file} on a machine with a connection" in str(caught.value.hint)


def test_a_network_without_published_weights() -> None:
    import_torchvision()
    with pytest.raises(InputError, match="timm publishes no trained weights for test_vit4"):
        published_weights("timm:test_vit4", 3)
