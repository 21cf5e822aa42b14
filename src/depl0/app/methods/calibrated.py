"""Methods that score channels from data: by the loss, by the outputs of the next layers, or by feature maps."""

from __future__ import annotations

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


@torch.no_grad()
def maps_at_sites(gated: GatedModel, images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return (gate of every channel, maps) for every gate site, in order of execution.

    Maps have shape (images, channels, rows, columns). They are taken as the next layer reads them, because only there
    are channels flat or zero: after the activation that follows the site, if necessary after the addition of a
    shortcut. The activation is the first other function that keeps the shape.
    """
    sites: dict[int, dict[int, Tensor]] = {}
    for name, dim in gated.plan.sites:
        sites.setdefault(id(gated.host.get_parameter(name)), {})[dim] = gated.plan.axes[(name, dim)]
    found: list[tuple[Tensor, int, Tensor]] = []
    followed: dict[int, tuple[Tensor, list[int], bool]] = {}  # tensor, its places in `found`, whether it is a sum

    def note(call: Call, result: Any) -> None:
        tensors, channel_dim = call.tensors, -1 if call.name == "linear" else 1
        inputs_first = call.name in TRANSPOSED and tensors[1].shape[1] == result.shape[1]  # not grouped
        gates_of = {
            tensor.dim() > 1 and dim == (0 if inputs_first else 1): gates
            for tensor in tensors[1:]
            for dim, gates in sites.get(id(tensor), {}).items()
        }
        if True in gates_of:  # the gates are on the inputs of the layer
            found.append((gates_of[True], channel_dim, tensors[0]))
        if False in gates_of:
            followed[id(result)] = (result, [len(found)], False)
            found.append((gates_of[False], channel_dim, result))
        if gates_of or call.name in LAYERS or not isinstance(result, Tensor):
            return
        adds, places = call.name in ADDITIONS, list[int]()
        for tensor in tensors if adds else tensors[:1]:
            _, mine, is_sum = followed.get(id(tensor), (tensor, [], False))
            if tensor.shape == result.shape and not (adds and is_sum):
                places += mine
                followed.pop(id(tensor), None)
        for place in places:
            found[place] = (*found[place][:2], result)
        if places and adds:
            followed[id(result)] = (result, places, True)

    with CallRecorder(gated.host, after=note):
        gated.host(images)
    by_channel = [(gates, maps.movedim(dim, 1)) for gates, dim, maps in found]
    return [(gates, m.reshape(*m.shape[:2], m.shape[2] if m.dim() > 3 else 1, -1)) for gates, m in by_channel]


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
