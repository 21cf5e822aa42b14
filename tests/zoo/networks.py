"""The zoo: public networks of many families, untrained, with inputs as small as they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.torchvision_shim import import_torchvision
from tests.zoo.small_networks import PatchTransformer, PreActivationNet, TwoInputNet, UNet


@dataclass(frozen=True)
class Entry:
    """One network of the zoo."""

    name: str
    size: int = 64
    prunable: bool = True
    """False where we know that nothing can be proven, and say so"""

    def build(self) -> nn.Module:
        """Return the network with fresh random weights."""
        source, _, name = self.name.partition(":")
        return BUILDERS[source](name)


def _torchvision(name: str) -> nn.Module:
    options = {"weights": None}
    if name.startswith(("fcn", "deeplab", "lraspp")):
        options["weights_backbone"] = None
    if name in {"googlenet", "inception_v3"}:
        options["init_weights"] = False
    return import_torchvision().models.get_model(name, **options)


def _timm(name: str) -> nn.Module:
    import_torchvision()
    import timm

    return timm.create_model(name, pretrained=False)


def _depl0(name: str) -> nn.Module:
    import depl0

    name, _, shortcut = name.partition("-")
    return depl0.models.build(name, **({"shortcut": shortcut} if shortcut else {}))


def _small(name: str) -> nn.Module:
    if name == "vit":
        import_torchvision()
        import timm

        return timm.models.VisionTransformer(32, 8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    networks = {
        "unet": UNet,
        "preactivation": PreActivationNet,
        "two_inputs": TwoInputNet,
        "transformer": PatchTransformer,
    }
    return networks[name]()


BUILDERS: dict[str, Callable[[str], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "depl0": _depl0,
    "small": _small,
}

NETWORKS = [
    # the three networks of the paper, and what else we ship
    Entry("depl0:vgg16", 32), Entry("depl0:resnet56-A", 32), Entry("depl0:resnet20-B", 32), Entry("depl0:resnet50"),
    Entry("depl0:lenet5", 28),
    # ours, for what no public network has
    Entry("small:unet"), Entry("small:preactivation", 32), Entry("small:two_inputs", 32),
    Entry("small:vit", 32), Entry("small:transformer", 32),
    # torchvision
    Entry("torchvision:alexnet", 96), Entry("torchvision:vgg11", 32), Entry("torchvision:vgg13_bn", 32),
    Entry("torchvision:resnet18"), Entry("torchvision:resnet50"), Entry("torchvision:resnet101"),
    Entry("torchvision:wide_resnet50_2"), Entry("torchvision:resnext50_32x4d"),
    Entry("torchvision:densenet121"), Entry("torchvision:googlenet", 96), Entry("torchvision:inception_v3", 299),
    Entry("torchvision:mobilenet_v2"), Entry("torchvision:mobilenet_v3_small"),
    Entry("torchvision:mobilenet_v3_large"), Entry("torchvision:mnasnet0_5"), Entry("torchvision:squeezenet1_1"),
    Entry("torchvision:shufflenet_v2_x0_5"), Entry("torchvision:shufflenet_v2_x1_0"),
    Entry("torchvision:efficientnet_b0"), Entry("torchvision:efficientnet_v2_s"),
    Entry("torchvision:regnet_x_400mf"), Entry("torchvision:regnet_y_400mf"), Entry("torchvision:convnext_tiny"),
    Entry("torchvision:swin_t"), Entry("torchvision:vit_b_16", 224),
    Entry("torchvision:deeplabv3_mobilenet_v3_large"), Entry("torchvision:lraspp_mobilenet_v3_large"),
    Entry("torchvision:fcn_resnet50"),
    # timm
    Entry("timm:res2net50_26w_4s"), Entry("timm:res2next50"), Entry("timm:resnest14d"),
    Entry("timm:seresnext26d_32x4d"),
    Entry("timm:skresnet18"), Entry("timm:ecaresnet26t"), Entry("timm:resnetv2_50"), Entry("timm:resnetblur50"),
    Entry("timm:densenetblur121d"), Entry("timm:mobileone_s0"), Entry("timm:mobileone_s4"), Entry("timm:repvgg_a0"),
    Entry("timm:ghostnet_100"), Entry("timm:hardcorenas_a"), Entry("timm:mobilenetv4_conv_small"),
    Entry("timm:efficientnet_lite0"), Entry("timm:tf_efficientnet_b0"), Entry("timm:mixnet_s"),
    Entry("timm:rexnet_100"),
    Entry("timm:cspresnet50"), Entry("timm:cspdarknet53"), Entry("timm:dla34"), Entry("timm:dpn68"),
    Entry("timm:hrnet_w18_small"), Entry("timm:inception_v4", 96), Entry("timm:inception_resnet_v2", 96),
    Entry("timm:xception41"), Entry("timm:selecsls42b"), Entry("timm:ese_vovnet19b_dw"), Entry("timm:gernet_s"),
    Entry("timm:regnetz_b16"), Entry("timm:convnext_atto"), Entry("timm:convnextv2_atto"),
    Entry("timm:mobilevit_xxs"),
    Entry("timm:efficientformer_l1", 224), Entry("timm:poolformer_s12"), Entry("timm:mixer_s32_224", 224),
    Entry("timm:fbnetc_100"), Entry("timm:lcnet_050"), Entry("timm:tinynet_e"), Entry("timm:starnet_s1"),
    Entry("timm:inception_next_tiny"), Entry("timm:hgnet_tiny"), Entry("timm:repghostnet_050"),
    Entry("timm:vit_tiny_patch16_224", 224), Entry("timm:deit3_small_patch16_224", 224),
    Entry("timm:swin_tiny_patch4_window7_224", 224),
    Entry("timm:nf_resnet26", prunable=False), Entry("timm:levit_128s", 224),
]  # fmt: skip


def example(entry: Entry) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return two random images of the entry's size."""
    channels = 1 if entry.name.endswith("lenet5") else 3
    image = torch.randn(2, channels, entry.size, entry.size, generator=torch.Generator().manual_seed(0))
    return (image, image.flip(0)) if entry.name == "small:two_inputs" else image
