"""Methods that score channels from data: by the loss, by the outputs of the next layers, or by feature maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor

from depl0.app.methods.base import Batches, Loss, Scored, register
from depl0.app.methods.weights import add_to_gates, no_scores
from depl0.gated import GatedModel
from depl0.host.calls import ADDITIONS, LAYERS, TRANSPOSED, Call, CallRecorder
from depl0.host.network import evaluation_mode
from depl0.search.calibration import Calibration
from depl0.search.importance import squared_gradients
from depl0.search.reconstruction import reconstruction_scores


@register("taylor")
@final
class Taylor(Scored):
    """Scores a channel by the squared first-order change of the loss when it is removed.

    s_j = E[(∂L/∂z_j · z_j)²] at z_j = 1, the mean over mini-batches; coupled layers share z_j, so that their
    contributions are added before the square. One threshold for the network.
    """

    reference = "Molchanov, Mallya, Tyree, Frosio, Kautz: Importance Estimation for Neural Network Pruning. CVPR 2019"
    scope = "network"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the mean squared gradient of every gate."""
        return squared_gradients(gated, batches, loss)


@register("reconstruction")
@final
class Reconstruction(Scored):
    """Scores a channel by the error that refitting its consumer layers leaves, relative to its cost.

    See :mod:`.scores.reconstruction`. This is optimal brain surgeon for channels. It is greedy, so that of several
    redundant channels not all get a low score. Across layers, errors are relative to the variance of the sum that the
    layer's output is part of. No labels are used.
    """

    reference = "Hassibi, Stork: Second order derivatives for network pruning: Optimal Brain Surgeon. NIPS 1992"
    scope = "network"

    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the log of every gate's error minus the log of its cost."""
        pairs: list[Any] = list(batches)
        inputs = Calibration(pairs, (), (), loss).inputs()
        return reconstruction_scores(gated, inputs, gated.config.of)


# -- feature maps ------------------------------------------------------------------------------------------------------

_SITES = {*LAYERS, "batch_norm", "instance_norm", "group_norm"}
_ACTIVATIONS = {
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "prelu", "elu", "elu_", "selu", "celu", "gelu", "silu",
    "mish", "hardtanh", "hardtanh_", "hardswish", "softplus", "sigmoid", "tanh", "clamp", "clamp_min",
}  # fmt: skip


@torch.no_grad()
def maps_at_sites(gated: GatedModel, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return (gate of every channel, maps) for every gate site, in order of execution.

    Maps have shape (images, channels, rows, columns). They are taken after the activation that follows the site, if
    necessary after the addition of a shortcut, as the next layer reads them, because only there are channels flat or
    zero.
    """
    maps = _Maps(gated)
    with CallRecorder(gated.host, after=maps.note):
        gated.host(images)
    for gates, channel_dim, tensor in maps.found:
        by_channel = tensor.movedim(channel_dim, 1)
        rows = by_channel.shape[2] if by_channel.dim() > 3 else 1
        yield gates, by_channel.reshape(*by_channel.shape[:2], rows, -1)


@final
class _Maps:
    """Records the outputs of gate sites, and follows them through one addition and one activation."""

    def __init__(self, gated: GatedModel) -> None:
        self.found: list[tuple[Tensor, int, Tensor]] = []
        """(gates, dimension of the channels, map)"""
        self._axes = {(id(gated.host.get_parameter(name)), dim): gated.plan.axes[(name, dim)]
                      for name, dim in gated.plan.sites}  # fmt: skip
        self._followed: dict[int, tuple[list[int], bool]] = {}
        """tensor -> the maps that it currently represents, and whether something has been added to it"""
        self._alive: list[Tensor] = []
        """tensors are kept alive, so that their ids are not reused"""

    def note(self, call: Call, result: Any) -> None:
        """Record the effect of a call on the maps."""
        if call.name in _SITES:
            self._note_site(call.name, call.tensors, result)
        elif call.name in ADDITIONS | _ACTIVATIONS and isinstance(result, Tensor):
            self._follow(call.name, call.tensors, result)

    def _note_site(self, name: str, tensors: list[Tensor], result: Tensor) -> None:
        """Record the output of a site, and the input of a layer whose gates are on its input weights."""
        channel_dim, input_dim = (-1 if name == "linear" else 1), 1
        if name in TRANSPOSED and tensors[1].shape[1] == result.shape[1]:  # not grouped: inputs come first
            input_dim = 0
        gates_of_output = None
        for parameter in tensors[1:]:
            for dim in range(min(parameter.dim(), 2)):
                gates = self._axes.get((id(parameter), dim))
                if gates is not None and parameter.dim() > 1 and dim == input_dim:
                    self.found.append((gates, channel_dim, tensors[0]))
                elif gates is not None:
                    gates_of_output = gates
        if gates_of_output is not None:
            self._followed[id(result)] = ([len(self.found)], False)
            self.found.append((gates_of_output, channel_dim, result))

    def _follow(self, name: str, tensors: list[Tensor], result: Tensor) -> None:
        """Replace maps by the output of an activation, or by their first sum with another tensor."""
        activates, maps = name in _ACTIVATIONS, []
        for tensor in tensors:
            numbers, added = self._followed.get(id(tensor), ([], False))
            if tensor.shape == result.shape and (activates or not added):
                maps += numbers
                self._followed.pop(id(tensor), None)
        for number in maps:
            gates, channel_dim, before = self.found[number]
            self._alive.append(before)
            self.found[number] = (gates, channel_dim, result)
        if maps and not activates:
            self._followed[id(result)] = (maps, True)


IMAGES = 500
"""images that ranks are averaged over, as in the paper"""


@register("hrank")
@final
class HighRank(Scored):
    """A channel whose maps have a low rank carries little information.

    s_j = E[rank(map_j)] over some images, each map a matrix, taken after the activation. Every group loses the same
    fraction.
    """

    reference = "Lin, Ji, Wang, Zhang, Zhang, Tian, Shao: HRank: Filter Pruning using High-Rank Feature Map. CVPR 2020"
    scope = "group"

    @torch.no_grad()
    def scores(self, gated: GatedModel, batches: Batches, loss: Loss, rng: torch.Generator) -> Tensor:
        """Return the mean rank of every gate's maps, over the first images of the batches."""
        total, count = no_scores(gated), 0
        with evaluation_mode(gated.host):
            for images, _ in batches:
                for gates, maps in maps_at_sites(gated, images[: IMAGES - count]):
                    ranks = torch.linalg.matrix_rank(maps.float())  # (images, channels)
                    add_to_gates(total, gates, ranks.float().sum(0))
                count += len(images[: IMAGES - count])
                if count >= IMAGES:
                    break
        return total / max(count, 1)
