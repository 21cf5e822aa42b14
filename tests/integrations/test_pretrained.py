"""Compact networks of transformers and timm: saved, opened, and from the Hub."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depl0
from depl0.errors import DownloadError, FormatError, InputError

pytestmark = pytest.mark.integrations
transformers = pytest.importorskip("transformers")

from depl0.integrations.transformers import load_pretrained, save_pretrained  # noqa: E402

TOKENS = torch.randint(3, 40, (2, 6), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def llama() -> nn.Module:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()  # type: ignore[no-any-return]


def cut(network: nn.Module, closed: dict[str, int]) -> nn.Module:
    """Close the last gates of some groups."""
    gated = depl0.attach(network, TOKENS)
    gates = torch.ones(gated.plan.num_gates)
    for group in gated.plan.groups:
        gates[group.offset + group.size - closed.get(group.name, 0) : group.offset + group.size] = 0
    gated.fix_gates(gates)
    return gated.extract().eval()


def logits(network: nn.Module) -> Tensor:
    with torch.no_grad():
        return network(TOKENS).logits  # type: ignore[no-any-return]


MLP = "model.layers.{}.mlp.gate_proj"


@pytest.fixture(scope="module")
def uneven() -> nn.Module:
    return cut(llama(), {MLP.format(0): 10, MLP.format(1): 3})


def test_other_layers_are_opened_by_one_line(uneven: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    copy.deepcopy(uneven).save_pretrained(folder)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".py"}  # no pickle
    opened = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    anything = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
    assert type(opened) is type(anything) is transformers.LlamaForCausalLM and anything.dtype == torch.bfloat16
    with pytest.raises(OSError, match=r"model\.safetensors"):  # not without a word
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    settings = {"max_new_tokens": 5, "do_sample": False}
    without_cache = uneven.generate(TOKENS, use_cache=False, **settings)
    for loaded in (opened, load_pretrained(folder)):
        assert torch.equal(logits(loaded), logits(uneven))
        assert depl0.info(loaded).macs_left == depl0.info(uneven).macs_left
        assert torch.equal(loaded.generate(TOKENS, use_cache=True, **settings), without_cache)


def test_a_loaded_network_is_saved_again(tmp_path: Path) -> None:
    compact = cut(llama(), {MLP.format(0): 10, MLP.format(1): 3, "model.embed_tokens": 4})
    folder = save_pretrained(load_pretrained(save_pretrained(compact, tmp_path / "small")), tmp_path / "again")
    assert torch.equal(logits(load_pretrained(folder)), logits(compact))


def test_a_tokenizers_batches_prune_a_tied_model_in_half_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)
    network = transformers.LlamaForCausalLM(config).eval().to(torch.bfloat16)
    tokens = torch.randint(3, 40, (32, 12))
    names = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    data = [
        transformers.BatchEncoding(dict(zip(names, parts, strict=True)))
        for parts in zip(*(value.split(8) for value in names.values()), strict=True)
    ]
    pruned = depl0.prune(network, data[0], data=data, budget=0.7, recover=2, quiet=True)
    assert depl0.info(pruned).macs_left <= 0.7
    assert depl0.info(pruned).agreement.equal is not None  # token scores are class scores
    assert {tensor.dtype for tensor in pruned.parameters()} == {torch.bfloat16}
    assert pruned.lm_head.weight is pruned.model.embed_tokens.weight
    loaded = load_pretrained(pruned.save_pretrained(tmp_path / "small"))
    settings = {"max_new_tokens": 5, "do_sample": False}
    without_cache = pruned.generate(TOKENS, use_cache=False, **settings)
    assert torch.equal(loaded.generate(TOKENS, use_cache=True, **settings), without_cache)


def in_cache(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a folder where the Hub's cache has that of owner/small, and cut the connection."""
    constants = pytest.importorskip("huggingface_hub").constants
    revision, home = "a" * 40, cache / "models--owner--small"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(revision)
    shutil.copytree(folder, home / "snapshots" / revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_from_the_hub(uneven: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_cache(save_pretrained(uneven, tmp_path / "small"), tmp_path / "cache", monkeypatch)
    assert torch.equal(logits(load_pretrained("hf://owner/small")), logits(uneven))
    assert torch.equal(logits(depl0.load("hf://owner/small", llama)), logits(uneven))
    with pytest.raises(DownloadError, match="hf://owner/other could not be downloaded"):
        load_pretrained("hf://owner/other")
    with pytest.raises(InputError, match="called hf://OWNER/NAME"):
        depl0.load("hf://small", llama)


def test_what_is_no_compact_network_of_transformers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a pruned model of transformers, got LlamaForCausalLM"):
        save_pretrained(llama(), tmp_path)
    with pytest.raises(FormatError, match=r"no config.json that names a network"):
        load_pretrained(tmp_path)


def test_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    from depl0.integrations import timm as pretrained

    arguments = {"num_classes": 3, "layers": (1, 1, 1, 1), "channels": (8, 8, 8, 8)}
    network = timm.create_model("resnet18", **arguments).eval()
    image = torch.rand(1, 3, 32, 32)
    compact = depl0.attach(network, image, budget=0.5).extract().eval()
    folder = pretrained.save_pretrained(compact, tmp_path / "small", "resnet18", **arguments)
    assert torch.equal(pretrained.load_pretrained(folder)(image), compact(image))
    in_cache(folder, tmp_path / "cache", monkeypatch)
    assert torch.equal(pretrained.load_pretrained("hf://owner/small")(image), compact(image))
    with pytest.raises(InputError, match="no network 'resnet_18'"):
        pretrained.save_pretrained(compact, tmp_path / "other", "resnet_18")
    with pytest.raises(FormatError, match="names no network of timm"):
        pretrained.load_pretrained(tmp_path)
