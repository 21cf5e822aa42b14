"""Self-attention of any width: of its input and output, of queries and keys, and of values.

The code of attention modules assumes that some of these widths are equal, or computes its scale from them.
:class:`PrunedAttention` replaces such a module in a pruned model, with the same parameters under the same names, and
with the scale of the original module as a constant. Every head loses the same positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from depl0.analysis.labels import Opaque, Reason
from depl0.analysis.propagate import Axis, LayerUse, ModuleCall, Propagation, ReplacedModule, WeighedProduct
from depl0.analysis.recording import Graph, operator_name, shape_of
from depl0.analysis.rules.operators import layer_parts
from depl0.analysis.rules.rulebook import layer_name
from depl0.host.copies import isolated_deepcopy
from depl0.replacements.base import ModuleNodes, Replacement, outermost_calls, reads_and_gives, replace_module

_NOISE = 4099
"""Number of random values to test a module with, which are repeated: a prime, so that all rows of a weight differ."""


@dataclass(frozen=True)
class AttentionSpec:
    """The computation of a self-attention module."""

    form: Literal["torch", "timm"]
    """``nn.MultiheadAttention`` on one input; or modules with linear layers ``qkv`` and ``proj``, as in timm."""
    heads: int
    head_dim: int
    scale: float

    @property
    def weight(self) -> str:
        """The parameter that projects to queries, keys and values, in that order, head by head."""
        return "in_proj_weight" if self.form == "torch" else "qkv.weight"

    @property
    def bias(self) -> str:
        """Its bias, which is optional."""
        return "in_proj_bias" if self.form == "torch" else "qkv.bias"

    @property
    def out(self) -> str:
        """The output projection of the heads."""
        return "out_proj" if self.form == "torch" else "proj"

    def __post_init__(self) -> None:
        if self.heads < 1 or self.head_dim < 1:
            raise ValueError(f"{self} has no heads")


@final
class PrunedAttention(nn.Module):
    """Self-attention whose heads have lost positions of queries and keys, or of values."""

    batch_first: bool
    _qkv_same_embed_dim = False  # disables the fused form of nn.TransformerEncoderLayer, which supports one width only

    def __init__(self, module: nn.Module, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec
        for name, parameter in module._parameters.items():
            self.register_parameter(name, parameter)
        for name, child in module._modules.items():
            self.register_module(name, child)
        self.num_heads = spec.heads
        self.batch_first = spec.form == "timm" or bool(module.batch_first)
        self.dropout = float(module.dropout) if spec.form == "torch" else 0.0  # type: ignore[arg-type]
        self.value_dim = spec.head_dim
        self.measure()
        self.train(module.training)

    def measure(self) -> None:
        """Set the width of the values from the output projection."""
        self.value_dim = int(self.get_parameter(f"{self.spec.out}.weight").shape[1]) // self.spec.heads

    def forward(self, query: Tensor, *others: Any, **options: Any) -> Any:
        """Compute attention with the signature of the replaced module."""
        if self.spec.form == "timm":
            return self._like_timm(query, *others, **options)
        return self._like_torch(query, *others, **options)

    def _like_timm(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        qkv, dropout, proj, last = (self._modules[name] for name in ("qkv", "attn_drop", "proj", "proj_drop"))
        assert qkv is not None and isinstance(dropout, nn.Dropout) and proj is not None and last is not None
        result: Tensor = last(proj(self._attend(qkv(x), attn_mask, dropout.p, is_causal)))
        return result

    def _like_torch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if key is not query or value is not query:
            raise ValueError("a pruned attention reads one input: query, key and value must be the same tensor.")
        x = query if query.dim() == 3 else query.unsqueeze(0)
        turned = query.dim() == 3 and not self.batch_first
        x = x.transpose(0, 1) if turned else x
        mask = self._mask(x, key_padding_mask, attn_mask)
        rows = F.linear(x, self.in_proj_weight, self.in_proj_bias)  # type: ignore[arg-type]
        weights: Tensor | None = None
        if need_weights:
            attended, weights = self._attend_by_hand(rows, mask)
        else:
            attended = self._attend(rows, mask, self.dropout, False)
        result = self.get_submodule("out_proj")(attended)
        result = result.transpose(0, 1) if turned else result
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.dim() == 3:
            return result, weights
        return result.squeeze(0), None if weights is None else weights.squeeze(0)

    def _mask(self, x: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Combine both masks into one that is added to the scores."""
        total: Tensor | None = None
        batch, length = x.shape[:2]
        if mask is not None:
            total = self._additive(mask, x)
            total = total.view(batch, self.spec.heads, length, length) if total.dim() == 3 else total
        if padding is not None:
            added = self._additive(padding, x).view(batch, 1, 1, length)
            total = added if total is None else total + added
        return total

    @staticmethod
    def _additive(mask: Tensor, x: Tensor) -> Tensor:
        if mask.dtype != torch.bool:
            return mask.to(x.dtype)
        return torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask, float("-inf"))

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn (batch, length, rows of all heads) into queries, keys and values, each (batch, heads, length, dim)."""
        heads, values = self.spec.heads, self.spec.heads * self.value_dim
        rest = (rows.shape[-1] - values) // 2
        parts = rows.split([rest, rest, values], dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        return q, k, v

    def _attend(self, rows: Tensor, mask: Tensor | None, dropout: float, is_causal: bool) -> Tensor:
        q, k, v = self._split(rows)
        dropout = dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale=self.spec.scale)
        return attended.transpose(1, 2).flatten(2)

    def _attend_by_hand(self, rows: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the weighted sum and the attention weights, the latter of shape (batch, heads, length, length)."""
        q, k, v = self._split(rows)
        scores = (q * self.spec.scale) @ k.transpose(-2, -1)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, self.dropout, self.training)
        return (weights @ v).transpose(1, 2).flatten(2), weights

    def extra_repr(self) -> str:
        """Return the widths of the heads for the module's ``repr``."""
        return f"heads={self.spec.heads}, values={self.value_dim} of {self.spec.head_dim}, scale={self.spec.scale:.4g}"


def keep_padding(network: nn.Module, path: str) -> None:
    """Make ``nn.TransformerEncoder`` pass padded batches to its layers: only the fused form accepts packed ones."""
    for name, module in network.named_modules():
        if isinstance(module, nn.TransformerEncoder) and path.startswith(f"{name}." if name else ""):
            module.use_nested_tensor = False


# -- the kind --------------------------------------------------------------------------------------------------------


@final
class AttentionReplacement(Replacement):
    """Self-attention modules are analysed as a whole: every head loses the same positions.

    Queries and keys are multiplied position by position, so their positions are removed together. Values are removed
    together with the inputs of the output projection. A closed position of a query adds zero to every score, and a
    closed position of a value is a zero input of the output projection.
    """

    spec: AttentionSpec
    spec_type: ClassVar[type] = AttentionSpec
    kind: ClassVar[str] = "attention"
    description: ClassVar[str] = "attention modules that are replaced where they lose channels (PrunedAttention)"

    @classmethod
    def described(cls, module: nn.Module) -> AttentionSpec | None:
        """Return the computation that a module must have, if it has the parts of torch's or timm's attention."""
        if type(module) is nn.MultiheadAttention:
            plain = module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn
            return AttentionSpec("torch", module.num_heads, module.head_dim, module.head_dim**-0.5) if plain else None
        parts = dict(module.named_children())
        if module._parameters or not {"qkv", "proj", "attn_drop", "proj_drop"} <= parts.keys():
            return None
        heads = getattr(module, "num_heads", None)
        qkv, proj, known = parts["qkv"], parts["proj"], (nn.Dropout, nn.Identity)
        if type(qkv) is not nn.Linear or type(proj) is not nn.Linear or not isinstance(heads, int):
            return None
        if any(type(part) not in known for name, part in parts.items() if name not in {"qkv", "proj"}):
            return None
        if type(parts["attn_drop"]) is not nn.Dropout or qkv.out_features != 3 * proj.in_features:
            return None
        head_dim = proj.in_features // heads
        scale = getattr(module, "scale", None)
        scale = scale if isinstance(scale, float) else head_dim**-0.5
        return AttentionSpec("timm", heads, head_dim, scale) if head_dim * heads == proj.in_features else None

    @classmethod
    def batch_and_length(cls, shape: tuple[int, ...], spec: AttentionSpec, module: nn.Module) -> tuple[int, int]:
        """Return the sizes before the channels, in the module's dimension order."""
        if len(shape) == 2:
            return 1, shape[0]
        batch_first = spec.form == "timm" or bool(module.batch_first)
        return (shape[0], shape[1]) if batch_first else (shape[1], shape[0])

    @classmethod
    def recognise(cls, module: nn.Module) -> AttentionSpec | None:
        """Return the computation of a self-attention module, or None if the module cannot be pruned.

        It must compute the same values as its replacement, in float64, on random inputs.
        """
        if isinstance(module, PrunedAttention):
            spec: AttentionSpec | None = module.spec
            return spec
        spec = cls.described(module)
        if spec is None:
            return None
        rng = torch.Generator().manual_seed(0)
        try:
            tried = isolated_deepcopy(module).double().eval()
            for child in tried.modules():
                if isinstance(child, nn.Dropout):
                    child.p = 0.0
            width = tried.get_parameter(spec.weight).shape[1]
            with torch.no_grad():
                noise = torch.randn(_NOISE, generator=rng, dtype=torch.float64)
                for number, parameter in enumerate(tried.parameters()):
                    drawn = noise.roll(number).repeat(parameter.numel() // _NOISE + 1)
                    drawn = drawn[: parameter.numel()].view(parameter.shape)
                    parameter.copy_(drawn / (width**0.5 if parameter.dim() > 1 else 2))
                pruned = PrunedAttention(tried, spec).eval()
                args = [torch.randn(2, 5, width, generator=rng, dtype=torch.float64)] * (
                    3 if spec.form == "torch" else 1
                )
                wanted, found = tried(*args), pruned(*args)
        except Exception:  # it does not accept one input, so it is not self-attention
            return None
        return spec if _same(wanted, found) else None

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return the calls of self-attention modules."""
        return outermost_calls(graph, lambda path, _: state.recognised(cls.kind, path, cls.recognise) is not None)

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Assign the values of a call of a self-attention module."""
        module, spec = state.modules[path], state.recognised(cls.kind, path, cls.recognise)
        sources, results = reads_and_gives(graph, nodes)
        # A mask may be among the sources: any source that is not projected.
        biases = sources - _projected(graph, nodes, state.name_of(module.get_parameter(spec.weight)))
        sources -= biases
        products = {"scaled_dot_product_attention", "matmul", "bmm", "baddbmm"}
        if len(sources) != 1 or len(results) != 1 or not any(operator_name(n) in products for n in nodes):
            return ()
        if not all(bias in state.values for bias in biases):  # not computed before the rest
            return ()
        source, result = sources.pop(), results[0]
        before, after, last = shape_of(source), shape_of(result), len(shape_of(source)) - 1
        weight, out = module.get_parameter(spec.weight), module.get_parameter(f"{spec.out}.weight")
        if before[:-1] != after[:-1] or before[-1] != weight.shape[1] or after[-1] != len(out):
            return ()
        name, out_name = state.name_of(weight), state.name_of(out)
        layer, out_layer = layer_name(name), layer_name(out_name)
        incoming = state.channels_at(source, last, layer)
        rows, read = _inner_labels(state, spec, (name, weight), (out_name, out), layer)
        outgoing = state.labels.mint(len(out), out_layer)
        state.bind(name, {0: rows, 1: incoming}, 2, layer)
        state.bind(out_name, {0: outgoing, 1: read}, 2, out_layer)
        inner, outer = [(name, 0)], [(out_name, 0)]
        for bias, labels, axes in ((spec.bias, rows, inner), (f"{spec.out}.bias", outgoing, outer)):
            owner, _, attribute = bias.rpartition(".")
            parameter = module.get_submodule(owner)._parameters.get(attribute)
            if parameter is not None:
                state.bind(state.name_of(parameter), {0: labels}, 1, path)
                axes.append((state.name_of(parameter), 0))
        batch, length = cls.batch_and_length(before, spec, module)
        called = (layer, out_layer) if spec.form == "timm" else (path, path)
        for use, axis, made, given, by in (
            (layer, name, rows, incoming, called[0]),
            (out_layer, out_name, outgoing, read, called[1]),
        ):
            sizes = (len(made), len(given), batch * length)
            state.layers.append(LayerUse(use, (axis, 0), (axis, 1), *sizes, graph.mode, by))
        if graph.mode == "evaluation":  # scores use half of the rows of queries and keys, the weighted sum the values
            each = batch * length * length / 2
            state.products += [WeighedProduct(rows, each), WeighedProduct(read, each)]
        for added in biases:
            state.mark_unprunable(state.values[added], Reason("are added to the scores of an attention", path))
        for node in nodes:
            state.values[node] = Opaque(Reason("is inside of an attention", path))
        state.values[result] = state.output_of(outgoing, last, out_layer)
        axes_that_count = tuple((tensor, dim) for tensor in (name, out_name) for dim in (0, 1))
        state.replaced[path] = ReplacedModule(cls(spec), axes_that_count)
        state.module_calls[result] = ModuleCall(path, source, (name, 1), (), tuple(outer), tuple(inner))
        return nodes

    def cut(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Replace an attention module that has lost channels; update one that was replaced before."""
        module, spec = model.get_submodule(path), self.spec
        if isinstance(module, PrunedAttention):
            module.measure()
            return
        weight, out = module.get_parameter(spec.weight), module.get_parameter(f"{spec.out}.weight")
        width = spec.heads * spec.head_dim
        narrower = len(weight) < 3 * width or out.shape[1] < width
        # the code of torch's and torchvision's modules assumes that its input is as wide as its heads
        if narrower or (spec.form != "timm" and (weight.shape[1] < width or len(out) < width)):
            replace_module(model, path, PrunedAttention(module, spec))
            keep_padding(model, path)


def _projected(graph: Graph, nodes: list[fx.Node], weight: str) -> set[fx.Node]:
    """Return the nodes among these whose results flow into the layer with this weight."""
    parts = [parts for node in nodes if (parts := layer_parts(node)) is not None]
    stack, found = [each.input for each in parts if graph.tensors.get(each.weight) == weight], set[fx.Node]()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes if node in nodes else [])
    return found


def _inner_labels(
    state: Propagation, spec: AttentionSpec, first: tuple[str, Tensor], last: tuple[str, Tensor], layer: str
) -> tuple[Tensor, Tensor]:
    """Return labels for the rows of queries, keys and values, and for the inputs of the output projection."""
    known, read = state.axes.get((first[0], 0)), state.axes.get((last[0], 1))
    if known is not None and read is not None:  # another graph, or another call
        return known, read
    value_dim = last[1].shape[1] // spec.heads
    inner = (len(first[1]) // spec.heads - value_dim) // 2
    queries = state.labels.mint(inner, layer).repeat(spec.heads)
    values = state.labels.mint(value_dim, f"{layer}.values").repeat(spec.heads)
    return torch.cat([queries, queries, values]), values


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, tuple) and isinstance(found, tuple):
        return len(wanted) == len(found) and all(_same(a, b) for a, b in zip(wanted, found, strict=True))
    same_shape = isinstance(wanted, Tensor) and isinstance(found, Tensor) and wanted.shape == found.shape
    return same_shape and bool(torch.allclose(wanted, found, rtol=1e-9, atol=1e-10))
