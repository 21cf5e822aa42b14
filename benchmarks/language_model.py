"""Structured pruning of a language model, cut only: depl0 beside Wanda-sp, FLAP, SliceGPT and magnitude at equal cost.

    python benchmarks/language_model.py OUT --model DIR --text FILE      # computes the rows that are missing
    python benchmarks/language_model.py OUT                              # the page alone, from the rows that are there

Makes OUT/language-models.{json,md}. DIR holds a Llama of transformers with its tokenizer, FILE a text. The first half
of the text is for calibration and for every choice, the second half for the figures. All methods see the same tokens,
and every network has at most the budgeted multiply-accumulates (MACs) of the original model for one of the first 16
tokens: those of its weights, nearly.
The peers are implemented here from their papers:

- ``wanda-sp``: |weight| times the norm of its input, summed over a channel, one ratio for all layers, layer after layer
  (An et al., 2024, after Sun et al., 2024)
- ``flap``: the variance of a channel's input times its squared weights, standardised in every layer and compared over
  the network; the mean of what is removed goes into a bias (An et al., 2024)
- ``slicegpt``: the residual stream is projected on its principal directions, one rotation for each block, with the
  products that the shortcuts then need (Ashkboos et al., 2024). It is emulated by projections of full width, which
  compute the same
- ``magnitude``: the norm of a channel's own weights, one ratio for all layers

Wanda-sp, FLAP and magnitude may remove MLP channels alone, or key-value heads too. Of these variants the row has the
one with the lower perplexity on the first half of the text. All networks run in bfloat16 (autocast); statistics do not.
"""

from __future__ import annotations

import argparse
import copy
import math
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import options, provenance, read_rows, save_rows
from torch import Tensor, nn

import depl0
import depl0.integrations.transformers  # first: a torchvision of another build would stop transformers

COUNTED = 16
"""tokens of the example that MACs are counted on"""
RECOVERY = 200
"""steps of the recovery"""
VARIANTS = 2
"""numbers of key-value heads that Wanda-sp and magnitude try"""
PEERS = ("magnitude", "wanda-sp", "flap", "slicegpt")
INTRODUCTION = """\
# Structured pruning of a language model

SmolLM2-135M-Instruct, WikiText-2 validation text. Perplexity on the second half of the text, relative to the original
model in brackets; calibration data and all choices are from the first half. Right after the cut, except for "depl0,
recovered": 200 steps of distillation without labels, on 64 sequences. Every network has at most the same MACs as the
others of its column. One draw. Written by `benchmarks/language_model.py` from `language-models.json`.

"""


# -- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """Windows of tokens: for calibration, for choices between variants, and for the figures."""

    calibration: Tensor
    choice: Tensor
    test: Tensor

    @classmethod
    def read(cls, file: Path, tokenizer: Any, arguments: argparse.Namespace) -> Text:
        """Split a text in halves; choices are made on windows that calibration does not see."""
        text = file.read_text()
        first, second = (
            _windows(tokenizer(part, return_tensors="pt").input_ids[0], arguments.context)
            for part in (text[: len(text) // 2], text[len(text) // 2 :])
        )
        places = _spread(len(first), arguments.sequences + arguments.choices)
        chosen = torch.zeros(len(places), dtype=torch.bool)
        chosen[_spread(len(places), arguments.choices)] = True
        return cls(first[places[~chosen]], first[places[chosen]], second[_spread(len(second), arguments.tests)])


def _windows(tokens: Tensor, context: int) -> Tensor:
    return tokens[: len(tokens) // context * context].view(-1, context)


def _spread(length: int, count: int) -> Tensor:
    return (torch.arange(min(count, length)) * length) // min(count, length)


@torch.no_grad()
def perplexity(model: Any, windows: Tensor) -> float:
    """Return exp of the mean cross entropy of the next token."""
    losses = []
    for window in windows.split(4):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=window, use_cache=False).logits[:, :-1].float()
        losses.append(F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()) * len(window))
    return math.exp(float(torch.stack(losses).sum()) / len(windows))


# -- cost ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama that its MACs for one token depend on."""

    hidden: int
    mlp: int
    groups: int
    """key-value heads"""
    queries: int
    """query heads for each of them"""
    head: int
    layers: int
    vocabulary: int
    context: int

    @classmethod
    def of(cls, config: Any, context: int) -> Sizes:
        """Read them from a configuration."""
        groups, queries = config.num_key_value_heads, config.num_attention_heads
        return cls(
            config.hidden_size,
            config.intermediate_size,
            groups,
            queries // groups,
            config.head_dim,
            config.num_hidden_layers,
            config.vocab_size,
            context,
        )

    @property
    def group_macs(self) -> int:
        """One key-value head and its query heads: four projections, scores, and sums of values."""
        return self.head * (self.hidden * 2 * (self.queries + 1) + self.queries * 2 * self.context)

    @property
    def channel_macs(self) -> int:
        """One MLP channel."""
        return 3 * self.hidden

    @property
    def output_macs(self) -> int:
        """The layer that gives the scores of all tokens."""
        return self.hidden * self.vocabulary

    @property
    def dense(self) -> int:
        """The original model."""
        return self.output_macs + self.layers * (self.groups * self.group_macs + self.mlp * self.channel_macs)

    def sliced(self, hidden: int) -> float:
        """Return the MACs with a smaller residual stream and the rotations of its shortcuts (two for each block)."""
        attention = self.groups * self.head * self.queries * 2 * self.context
        weights = self.dense - self.layers * attention
        return weights * hidden / self.hidden + self.layers * (attention + 2 * hidden**2)


# -- inputs of the layers --------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """Sums over the inputs of a layer."""

    count: int = 0
    total: Any = 0.0
    squares: Any = 0.0

    def add(self, x: Tensor) -> None:
        """Add the rows of a batch."""
        rows = x.flatten(0, -2).float()
        self.count, self.total, self.squares = (
            self.count + len(rows),
            self.total + rows.sum(0, dtype=torch.float64),
            self.squares + rows.square().sum(0, dtype=torch.float64),
        )

    @property
    def mean(self) -> Tensor:
        """The mean of every column."""
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        """The variance of every column."""
        return self.squares / self.count - self.mean.square()


@torch.no_grad()
def blocks(model: Any, windows: Tensor, *, changed: bool) -> Iterator[tuple[Any, tuple[Seen, Seen]]]:
    """Yield every block with statistics of what its o_proj and down_proj read.

    If blocks are ``changed``, a block's outputs are computed again when the next one is asked for.
    """
    hidden = model.model.embed_tokens(windows)
    positions = model.model.rotary_emb(hidden, torch.arange(windows.shape[1])[None])

    def run(block: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cat([block(part, position_embeddings=positions) for part in x.split(4)])

    for block in model.model.layers:
        seen = Seen(), Seen()
        hooks = [
            layer.register_forward_pre_hook(lambda _, args, s=s: s.add(args[0]))
            for layer, s in zip((block.self_attn.o_proj, block.mlp.down_proj), seen, strict=True)
        ]
        outputs = run(block, hidden)
        for hook in hooks:
            hook.remove()
        yield block, seen
        hidden = run(block, hidden) if changed else outputs


# -- channels and heads ----------------------------------------------------------------------------------------------


def per_group(values: Tensor, sizes: Sizes) -> Tensor:
    """Sum the scores of o_proj's columns over every key-value head with its query heads."""
    return values.view(sizes.groups, -1).sum(1)


def remove(layer: nn.Linear, columns: Tensor, mean: Tensor | None = None) -> None:
    """Set columns to zero, which is equivalent to removing them; their mean contribution is added to a bias."""
    with torch.no_grad():
        if mean is not None:
            layer.bias = nn.Parameter((layer.weight[:, columns].double() @ mean[columns]).float())
        layer.weight[:, columns] = 0


def head_columns(closed: Tensor, sizes: Sizes) -> Tensor:
    """Return the columns of o_proj that belong to these key-value heads."""
    return closed.repeat_interleave(sizes.queries * sizes.head)


def widths(sizes: Sizes, budget: float) -> list[tuple[int, int]]:
    """Return (key-value heads, MLP channels) for one ratio in all layers: every number of heads that leaves an MLP."""
    found = []
    for groups in range(sizes.groups, 0, -1):
        left = budget * sizes.dense - sizes.output_macs - sizes.layers * groups * sizes.group_macs
        channels = min(sizes.mlp, math.floor(left / (sizes.layers * sizes.channel_macs)))
        if channels > 0:
            found.append((groups, channels))
    return found


def wanda(model: Any, windows: Tensor, groups: int, channels: int, sizes: Sizes) -> Any:
    """Remove the same number of channels and heads in every layer, by weights and inputs."""
    for block, seen in blocks(model, windows, changed=True):
        attention, mlp = block.self_attn.o_proj, block.mlp.down_proj
        read = [(each.squares / each.count).sqrt() for each in seen]
        heads = per_group((attention.weight.abs() * read[0]).sum(0), sizes)
        remove(mlp, _lowest((mlp.weight.abs() * read[1]).sum(0), sizes.mlp - channels))
        remove(attention, head_columns(_lowest(heads, sizes.groups - groups), sizes))
    return model


def magnitude(model: Any, groups: int, channels: int, sizes: Sizes) -> Any:
    """Remove the same number of channels and heads in every layer, by weights alone."""
    for block in model.model.layers:
        mlp = block.mlp
        heads = per_group(block.self_attn.o_proj.weight.square().sum(0), sizes)
        score = sum(w.weight.square().sum(1) for w in (mlp.gate_proj, mlp.up_proj))
        remove(mlp.down_proj, _lowest(score + mlp.down_proj.weight.square().sum(0), sizes.mlp - channels))
        remove(block.self_attn.o_proj, head_columns(_lowest(heads, sizes.groups - groups), sizes))
    return model


def _lowest(score: Tensor, count: int) -> Tensor:
    closed = torch.zeros(len(score), dtype=torch.bool)
    closed[score.argsort()[:count]] = True
    return closed


def flap(model: Any, seen: list[tuple[Seen, Seen]], budget: float, sizes: Sizes, *, heads: bool) -> Any:
    """Remove what fluctuates least, in the whole network, and put its mean into biases."""
    scores: list[Tensor] = []
    for block, (attention, mlp) in zip(model.model.layers, seen, strict=True):
        by_head = per_group(attention.variance * block.self_attn.o_proj.weight.square().sum(0), sizes)
        scores += [by_head, mlp.variance * block.mlp.down_proj.weight.square().sum(0)]
    standard = [(s - s.mean()) / s.std() for s in scores]
    price = torch.cat(
        [torch.tensor([sizes.group_macs, sizes.channel_macs][n % 2]).expand(len(s)) for n, s in enumerate(scores)]
    )
    flat = torch.cat([s if heads or n % 2 else torch.full_like(s, math.inf) for n, s in enumerate(standard)])
    order = flat.argsort()
    excess = (1 - budget) * sizes.dense
    count = int((price[order].cumsum(0) < excess).sum()) + 1
    closed = torch.zeros(len(flat), dtype=torch.bool).index_fill(0, order[:count], True)
    parts = closed.split([len(s) for s in scores])
    for number, (block, (attention, mlp)) in enumerate(zip(model.model.layers, seen, strict=True)):
        remove(block.self_attn.o_proj, head_columns(parts[2 * number], sizes), attention.mean)
        remove(block.mlp.down_proj, parts[2 * number + 1], mlp.mean)
    return model


# -- SliceGPT --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def slicegpt(model: Any, windows: Tensor, budget: float, sizes: Sizes) -> Any:
    """Project what every norm reads, and the shortcut with it, on its principal directions, layer after layer."""
    width = next(w for w in range(sizes.hidden, 0, -1) if sizes.sliced(w) <= budget * sizes.dense)
    hidden = model.model.embed_tokens(windows)
    positions = model.model.rotary_emb(hidden, torch.arange(windows.shape[1])[None])

    def projection(x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        basis = torch.linalg.eigh((rows.T @ rows).double())[1][:, -width:]
        return (basis @ basis.T).float()

    def run(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cat([layer(part) for part in x.split(4)]).float()

    for block in model.model.layers:
        first = projection(hidden)
        hidden = hidden @ first
        middle = hidden + run(lambda x, b=block: b.self_attn(b.input_layernorm(x), positions, None)[0], hidden)
        second = projection(middle)
        hidden = middle @ second
        hidden = hidden + run(lambda x, b=block: b.mlp(b.post_attention_layernorm(x)), hidden)
        block.register_forward_pre_hook(lambda _, args, p=first: (projected(args[0], p), *args[1:]))
        block.self_attn.register_forward_hook(_Projecting(block, second))
    last = projection(hidden)
    model.model.norm.register_forward_pre_hook(lambda _, args: (projected(args[0], last),))
    return model


def projected(x: Tensor, projection: Tensor) -> Tensor:
    """Project in float32."""
    with torch.autocast("cpu", enabled=False):
        return x.float() @ projection


class _Projecting:
    """Adjust the output of attention so that its sum with the shortcut is the projected sum."""

    def __init__(self, block: Any, projection: Tensor) -> None:
        self.projection, self.residual = projection, torch.zeros(())
        block.input_layernorm.register_forward_pre_hook(self.remember)

    def remember(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.residual = args[0]

    def __call__(self, _: nn.Module, __: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = projected(self.residual + output[0], self.projection)
        return (total - self.residual, *output[1:])


# -- rows ------------------------------------------------------------------------------------------------------------


def variants(method: str, model: Any, text: Text, budget: float, sizes: Sizes) -> Iterator[tuple[str, Any, float]]:
    """Yield the variants of a method: a name, a network, and its fraction of the MACs."""
    windows = text.calibration
    if method in ("wanda-sp", "magnitude"):
        for groups, channels in widths(sizes, budget)[:VARIANTS]:
            pruned = copy.deepcopy(model)
            if method == "wanda-sp":
                pruned = wanda(pruned, windows, groups, channels, sizes)
            else:
                pruned = magnitude(pruned, groups, channels, sizes)
            macs = sizes.layers * (groups * sizes.group_macs + channels * sizes.channel_macs) + sizes.output_macs
            yield f"{groups} of {sizes.groups} key-value heads, {channels} channels", pruned, macs / sizes.dense
    elif method == "flap":
        seen = [each for _, each in blocks(model, windows, changed=False)]
        for heads in (False, True):
            name = "MLP channels and heads" if heads else "MLP channels"
            yield name, flap(copy.deepcopy(model), seen, budget, sizes, heads=heads), budget
    elif method == "slicegpt":
        yield "residual stream", slicegpt(copy.deepcopy(model), windows, budget, sizes), budget
    elif method.startswith("depl0"):
        batches = list(windows.split(1))
        recover = RECOVERY if method.endswith("recovered") else None
        with torch.autocast("cpu", torch.bfloat16):
            pruned = depl0.prune(model, batches[0][:1, :COUNTED], data=batches, budget=budget, recover=recover)
        yield "defaults", pruned, depl0.info(pruned).macs_left
    else:
        yield "original model", model, 1.0


def row(method: str, model: Any, text: Text, budget: float, sizes: Sizes, keep: Path | None = None) -> dict[str, Any]:
    """Prune by a method, take its best variant by the first half of the text, and measure it on the second."""
    start = time.process_time()
    choice, name, best, macs = math.inf, "", model, 1.0
    for each, pruned, part in variants(method, model, text, budget, sizes):
        value = perplexity(pruned, text.choice)
        print(
            f"{method} {budget:g} {each}: {value:.2f} on the first half, {time.process_time() - start:.0f} s",
            flush=True,
        )
        if value <= choice:
            choice, name, best, macs = value, each, pruned, part
    seconds = time.process_time() - start
    if keep is not None and method.startswith("depl0"):
        best.save_pretrained(keep / f"{method.replace(', ', '-')}-{budget:g}")
    return {
        "method": method,
        "budget": budget,
        "variant": name,
        "macs": round(macs, 4),
        "perplexity": round(perplexity(best, text.test), 2),
        "choice": round(choice, 2),
        "seconds": round(seconds),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "sequences": len(text.calibration),
        "context": text.calibration.shape[1],
        "tests": len(text.test),
        **provenance(),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    dense = next((r["perplexity"] for r in rows if r["method"] == "original model"), math.nan)
    budgets = sorted({r["budget"] for r in rows if r["budget"] < 1}, reverse=True)
    lines = ["| method | " + " | ".join(f"{b:.0%} of the MACs" for b in budgets) + " |"]
    lines.append("|---|" + "--:|" * len(budgets))
    for method in dict.fromkeys(r["method"] for r in rows if r["budget"] < 1):
        cells = []
        for budget in budgets:
            each = next((r for r in rows if r["method"] == method and r["budget"] == budget), None)
            value = "–" if each is None else _short(each["perplexity"], dense)
            cells.append(value)
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    first = rows[0]
    tokens = f"{first['sequences']} sequences of {first['context']} tokens"
    lines += ["", f"Original model: {dense}. Calibration: {tokens}; figures: {first['tests']} sequences."]
    return INTRODUCTION + "\n".join(lines) + "\n"


def _short(value: float, dense: float) -> str:
    return f"{value:.3g} ({value / dense:.2f})" if value < 1e4 else f"{value:.0e}"


def main() -> None:
    """Compute the missing rows, and write the page."""
    parser = options(__doc__ or "")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.9, 0.8, 0.7, 0.5])
    parser.add_argument("--methods", nargs="+", default=[*PEERS, "depl0"])
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--choices", type=int, default=4)
    parser.add_argument("--tests", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="save depl0's networks in OUT/networks")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "language-models.json"
    rows = read_rows(file)
    if arguments.model is not None:
        torch.set_num_threads(arguments.threads)
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, use_cache=False).eval()
        text = Text.read(arguments.text, AutoTokenizer.from_pretrained(arguments.model), arguments)
        sizes = Sizes.of(model.config, COUNTED)
        wanted = [("original model", 1.0), *((m, b) for b in arguments.budgets for m in arguments.methods)]
        for method, budget in wanted:
            if all((r["method"], r["budget"]) != (method, budget) for r in rows):
                keep = arguments.out / "networks" if arguments.keep else None
                rows.append(row(method, model, text, budget, sizes, keep))
                print(rows[-1], flush=True)
                save_rows(file, rows)
    (arguments.out / "language-models.md").write_text(page(rows))


if __name__ == "__main__":
    main()
