"""Hugging Face's transformers: whole heads go, with the keys and values that several of them share."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.compare import call, distance, pruned, same_cost
from tests.support.sampling import covering
from torch import nn

import depl0
from depl0.host.inputs import ExampleInputs

pytestmark = pytest.mark.structures

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(3, 40, (1, 6), generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
SHARED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2}
IMAGES: dict[str, Any] = {**SIZES, "image_size": 16, "patch_size": 8}
GPT: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 4, "vocab_size": 40, "n_positions": 32}
FAMILIES: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "BertForSequenceClassification": ("BertConfig", SIZES, 4, 0.05),
    "GPT2LMHeadModel": ("GPT2Config", GPT, 4, 0.05),
    "LlamaForCausalLM": ("LlamaConfig", SHARED, 2, 0.06),
    "Qwen3ForCausalLM": ("Qwen3Config", {**SHARED, "head_dim": 4}, 2, 0.06),
    "GemmaForCausalLM": ("GemmaConfig", {**SHARED, "head_dim": 4}, 2, 0.06),
    "ViTForImageClassification": ("ViTConfig", IMAGES, 4, 0.08),
}
"""class -> its settings' class, settings, gates of its heads, and the least MACs that must be within reach"""


def built(name: str, implementation: str, **changes: Any) -> nn.Module:
    settings, sizes, _, _ = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, settings)(**{**sizes, **changes}, attn_implementation=implementation)
    model: nn.Module = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # weights that start near zero would hide what attention does
            parameter.add_(torch.randn_like(parameter) / 5)
    return model


@pytest.mark.parametrize(("name", "implementation"), covering(list(FAMILIES), ["eager", "sdpa"]))
def test_heads_are_pruned_exactly(name: str, implementation: str, tmp_path: Path) -> None:
    _, _, heads, least = FAMILIES[name]
    host = built(name, implementation).double()
    before = {key: value.clone() for key, value in host.state_dict().items()}
    inputs = IMAGE.double() if "Image" in name else TOKENS
    gated, compact = pruned(host, inputs, seed=1)
    assert gated.plan.least() < least, str(gated.plan)
    assert heads in [group.size for group in gated.plan.groups]
    assert set(gated.plan.unprunable()) == {"reaches the network's output"}

    certificate = depl0.info(compact).certificate
    assert certificate.covered[-1] == "training mode" and not any("batch" in what for what in certificate.refused)
    more = torch.cat([inputs, inputs.flip(-1)]) if "Image" in name else torch.randint(3, 40, (2, 11))
    for given in (inputs, more):
        bound = 1e-5 if "norm" in {kind.kind for kind in gated.plan.replaced()} else 1e-12
        assert distance(call(gated, given).logits, call(compact, given).logits) < bound
    assert same_cost(gated.kept_cost(), depl0.cost(compact, inputs))
    loaded = depl0.load(depl0.save(compact, tmp_path / "small"), lambda: built(name, implementation).double()).eval()
    assert torch.equal(call(loaded, inputs).logits, call(compact, inputs).logits)
    assert all(torch.equal(value, before[key]) for key, value in host.state_dict().items())
    assert type(compact) is type(host)


def generated(model: Any, use_cache: bool) -> torch.Tensor:
    """Return the tokens that a network adds to those of an example, each the most likely one."""
    options = {"max_new_tokens": 6, "do_sample": False, "use_cache": use_cache, "eos_token_id": None, "pad_token_id": 0}
    tokens: torch.Tensor = model.generate(TOKENS, attention_mask=torch.ones_like(TOKENS), **options)
    return tokens


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_generation_with_the_cache_that_is_returned_by_default(name: str, tmp_path: Path) -> None:
    host = built(name, "sdpa")
    batch = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "labels": TOKENS}
    gated, compact = pruned(host, transformers.BatchEncoding(batch), seed=1)
    unprunable = {report.layer for report in gated.plan.layers if report.prunable == 0}
    assert unprunable <= {"lm_head", "transformer.wte"}, str(gated.plan)
    loaded = depl0.load(depl0.save(compact, tmp_path), lambda: built(name, "sdpa")).eval()
    for model in (host, compact, loaded):
        assert torch.equal(generated(model, use_cache=True), generated(model, use_cache=False))
    assert torch.equal(generated(loaded, use_cache=True), generated(compact, use_cache=True))
    with torch.no_grad():
        caches = [model(TOKENS).past_key_values for model in (gated.eval(), compact)]
        wanted = gated(TOKENS[:, :1], past_key_values=caches[0]).logits
        assert distance(wanted, compact(TOKENS[:, :1], past_key_values=caches[1]).logits) < 1e-4


def test_the_certificate_of_a_network_with_casts_to_float32_is_in_float64() -> None:
    host = built("LlamaForCausalLM", "eager")  # its norms, its softmax and its positions are in float32
    certificate = depl0.info(pruned(host, TOKENS, seed=1)[1]).certificate
    assert certificate.dtype == "float64" and certificate.max_error < 1e-12


def test_a_cache_that_the_pruned_network_cannot_use_is_found() -> None:
    """Keys are scaled by their number when they come from the cache, which the outputs of one call do not show."""

    class Scaled(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        def forward(self, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
            if past_key_values is not None:
                layer = past_key_values.layers[0]
                layer.keys = layer.keys * layer.keys.shape[1]
            return super().forward(*args, past_key_values=past_key_values, **kwargs)

    torch.manual_seed(0)
    host = Scaled(transformers.LlamaConfig(**SHARED)).eval()
    with torch.no_grad():
        for parameter in host.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)
    report = {layer.layer: layer for layer in depl0.plan(host, TOKENS).layers}
    assert report["model.layers.0.self_attn.k_proj"].prunable == 0
    assert report["model.layers.0.mlp.up_proj"].prunable == 24


def test_a_mask_of_padding_stays_what_it_is() -> None:
    host = built("BertForSequenceClassification", "sdpa")
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    example = {"input_ids": TOKENS.repeat(2, 1), "attention_mask": mask}
    gated, compact = pruned(host, example, seed=1)
    assert 4 in [group.size for group in gated.plan.groups]
    others = ExampleInputs.of({**example, "attention_mask": mask.flip(0)})
    with torch.no_grad():
        assert distance(gated(**others.kwargs), compact(**others.kwargs)) < 1e-5


def test_hooks_that_transformers_installs_on_the_first_pass_are_not_doubled() -> None:
    host = built("ViTForImageClassification", "eager")
    inputs = {"pixel_values": IMAGE, "output_hidden_states": True}
    wanted = call(copy.deepcopy(host), inputs).hidden_states
    depl0.attach(host, IMAGE)
    found = call(host, inputs).hidden_states
    assert len(found) == len(wanted) and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
