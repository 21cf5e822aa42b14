"""Weights are loaded whole or not at all, and a file cannot run code."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - to write the files that must be refused

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from depl0.app.models import build
from depl0.app.weights import NewHead, load_weights
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


def refused(model: nn.Module, path) -> str:
    """Load a file that must be refused; give the error's text, after a look at the network."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load_weights(model, path)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    return str(caught.value)


def write(path, content, name):
    file = path / name
    save_file(content, file) if name.endswith(".safetensors") else save(content, file)
    return file


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "W.PTH", "w.pth.tar"])
def test_each_kind_of_file(tmp_path, source, target, name):
    parameters = list(target.parameters())
    load_weights(target, write(tmp_path, source.state_dict(), name))
    assert same(target, source)
    assert all(now is before for now, before in zip(target.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in target.parameters())
    load_weights(target, str(tmp_path / name))


@pytest.mark.parametrize(("key", "prefix"), [("state_dict", ""), ("model", "module.")])
def test_checkpoints_of_training_programs(tmp_path, source, target, key, prefix):
    state = {prefix + name: value for name, value in source.state_dict().items()}
    load_weights(target, write(tmp_path, {"epoch": 3, "optimizer": {"state": {}}, key: state}, "w.pth"))
    assert same(target, source)


def test_a_prefix_in_safetensors_and_one_that_belongs_to_the_network(tmp_path, source, target):
    state = {f"module.{name}": value for name, value in source.state_dict().items()}
    file = write(tmp_path, state, "w.safetensors")
    load_weights(target, file)
    assert same(target, source)
    wrapped = nn.Module()
    wrapped.module = network()
    load_weights(wrapped, file)
    assert same(wrapped.module, source)


def test_half_precision_weights_and_counters_of_any_type(tmp_path, source, target):
    state = {name: value.half() for name, value in source.state_dict().items()}
    load_weights(target, write(tmp_path, state, "w.safetensors"))
    assert all(parameter.dtype == torch.float32 for parameter in target.parameters())
    assert torch.equal(target[0].weight, source[0].weight.half().float())
    assert target[1].num_batches_tracked.dtype == torch.int64
    assert target[1].num_batches_tracked == 3


def test_counters_of_batch_norm_may_be_missing(tmp_path, source, target):
    state = source.state_dict()
    del state["1.num_batches_tracked"]
    target[1].num_batches_tracked.fill_(5)
    load_weights(target, write(tmp_path, state, "w.pt"))
    assert target[1].num_batches_tracked == 5
    assert torch.equal(target[1].running_mean, source[1].running_mean)


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


def test_one_wrong_key_keeps_all_others_out(tmp_path, source, target):
    state = source.state_dict()
    state["3.bias"] = torch.zeros(5)
    assert "1 misshapen (3.bias: 5 in the file, 4 in the network)" in refused(target, write(tmp_path, state, "w.pt"))


def test_a_shape_that_would_broadcast_is_misshapen(tmp_path, source, target):
    state = source.state_dict()
    state["3.bias"] = torch.zeros(1)
    assert "1 misshapen (3.bias: 1 in the file, 4 in the network)" in refused(target, write(tmp_path, state, "w.pt"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_weights_of_another_kind_of_number(tmp_path, source, target, dtype):
    state = source.state_dict()
    state["3.bias"] = torch.zeros(4, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    assert f"(3.bias: 4 of {name} in the file, 4 in the network)" in refused(target, write(tmp_path, state, "w.pt"))


def test_a_network_of_the_wrong_depth(tmp_path):
    file = write(tmp_path, build("resnet32").state_dict(), "w.safetensors")
    message = refused(build("resnet20"), file)
    assert "does not fit the network: 72 extra (layer1.3." in message
    assert " and 69 more)" in message


def test_the_meta_device_has_nothing_to_load_into(tmp_path, source):
    with torch.device("meta"):
        empty = network()
    with pytest.raises(InputError, match="cannot be loaded into a network on the meta device"):
        load_weights(empty, write(tmp_path, source.state_dict(), "w.pt"))


# ---------------------------------------------------------------------------------------------------------------------
# Files that cannot be read


def test_files_that_are_not_there(tmp_path, target):
    assert refused(target, tmp_path / "none.pt") == f"weights file {tmp_path / 'none.pt'} does not exist."
    (tmp_path / "folder.pt").mkdir()
    assert "folder.pt is not a file; expected a .safetensors, .pt or .pth file." in refused(
        target, tmp_path / "folder.pt"
    )
    (tmp_path / "w.onnx").write_bytes(b"x")
    assert "w.onnx must end in .safetensors, .pt or .pth.\nhint: save a state dict with safetensors" in refused(
        target, tmp_path / "w.onnx"
    )


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
@pytest.mark.parametrize("content", [b"hello world\n" * 4, b"\xff" * 1000, b"<html>not found</html>"])
def test_files_of_something_else(tmp_path, target, name, content):
    (tmp_path / name).write_bytes(content)
    assert f"weights file {tmp_path / name} is damaged or " in refused(target, tmp_path / name)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.zeros(2)], "must hold a state dict, found a list instead"),
        (torch.zeros(2), "must hold a state dict, found a Tensor instead"),
        ({}, "must hold a state dict, found nothing instead"),
        ({"state_dict": {}}, "must hold a state dict, found nothing instead"),
        ({"epoch": 3}, "must hold a state dict of tensors, but 'epoch' is none"),
        ({"a": 1, "b": 2, 3: 3, "d": 4}, "but 'a', 'b', 3 and 1 more are none.\nhint: a checkpoint's state dict is"),
    ],
)
def test_files_without_a_state_dict(tmp_path, target, content, found):
    assert found in refused(target, write(tmp_path, content, "w.pt"))


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
    assert not trace.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_bare_pickle_that_would_run_code_is_refused(tmp_path, target, trace, protocol):
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Payload(trace), protocol=protocol))
    assert f"weights file {tmp_path / 'w.pt'} is " in refused(target, tmp_path / "w.pt")
    assert not trace.exists()


def test_a_whole_network_is_refused(tmp_path, source, target):
    save(source, tmp_path / "w.pt")
    assert "is refused: it holds torch.nn.modules.container.Sequential, which would run code" in refused(
        target, tmp_path / "w.pt"
    )


# -- another number of classes ---------------------------------------------------------------------------------------


def test_a_new_head_for_other_classes(tmp_path, source):
    file = write(tmp_path, source.state_dict(), "w.safetensors")
    model = network(classes=7)
    head = model[3].weight.clone()
    assert load_weights(model, file, strict=False) == NewHead(("3",), before=4, now=7)
    assert same(model[:3], source[:3]) and torch.equal(model[3].weight, head)
    assert "misshapen" in refused(model, file)


def test_a_backbone_without_a_head(tmp_path, source):
    backbone = {key: value for key, value in source.state_dict().items() if not key.startswith("3")}
    for extra in ({}, {"classifier.weight": torch.zeros(9, 8), "classifier.bias": torch.zeros(9)}):
        file = write(tmp_path, {**backbone, **extra}, "w.safetensors")
        model = network()
        assert load_weights(model, file, strict=False) == NewHead(("3",), before=None, now=4)
        assert same(model[:3], source[:3])
        assert "2 missing (3.weight, 3.bias)" in refused(network(), file)


def test_weights_that_fit_keep_the_head(tmp_path, source, target):
    file = write(tmp_path, source.state_dict(), "w.safetensors")
    assert load_weights(target, file, strict=False) is None
    assert same(target, source)


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
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(InputError, match="does not fit the network"):
        load_weights(other, file, strict=False)
    assert all(torch.equal(other.state_dict()[key], value) for key, value in before.items())
