"""Weights are loaded whole or not at all, and a file cannot run code; published weights, and errors without them."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - to write the files that must be refused
import urllib.error

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from depl0._util.optional import import_torchvision
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


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth.tar"])
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
    ],
)
def test_one_wrong_entry_keeps_all_others_out(tmp_path, source, target, value, words):
    state = {**source.state_dict(), "3.bias": value}
    assert f"1 misshapen (3.bias: {words}, 4 in the network)" in refused(target, write(tmp_path, state, "w.pt"))


# -- files that cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 100])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_truncated_files(tmp_path, source, target, name, kept):
    file = write(tmp_path, source.state_dict(), name)
    file.write_bytes(file.read_bytes()[:kept])
    assert f"weights file {file} is damaged or " in refused(target, file)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.zeros(2)], "got a list instead"),
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


@pytest.mark.parametrize(
    "other",
    [
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 4)),  # narrower
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
    monkeypatch.setattr(torch.hub, "urlopen", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"weights of torchvision:resnet18 cannot be downloaded: .*Name or") as caught:
        published_weights("torchvision:resnet18", 3)
    file = "https://download.pytorch.org/models/resnet18-f37072fd.pth"
    assert f"download {file} on a machine with a connection" in str(caught.value.hint)
