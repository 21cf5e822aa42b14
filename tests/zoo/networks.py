"""The zoo: public networks of many families, untrained, with inputs as small as they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from depl0._util.optional import import_torchvision
from depl0.app.models.resnet import CifarResNet
from tests.networks.small import PatchTransformer, PreActivationNet, TwoInputNet, UNet


@dataclass(frozen=True)
class Entry:
    """One network of the zoo."""

    name: str
    size: int = 64
    """of the images; where the network does not take it, the size that it was published with"""
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


def _detection(name: str) -> nn.Module:
    """Return backbone and feature pyramid of a detector: what follows them depends on the values of tensors."""
    backbone: nn.Module = import_torchvision().models.get_model(name, weights=None, weights_backbone=None).backbone
    return backbone


def _timm(name: str) -> nn.Module:
    import_torchvision()
    import timm

    return timm.create_model(name, pretrained=False)


def _depl0(name: str) -> nn.Module:
    from depl0.app import models

    name, _, shortcut = name.partition("-")
    return models.build(name, **({"shortcut": shortcut} if shortcut else {}))


def _small(name: str) -> nn.Module:
    if name == "vit":
        import_torchvision()
        import timm

        return timm.models.VisionTransformer(32, 8, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    if name in {"swin", "swin_v2"}:
        import_torchvision()
        from torchvision.models import swin_transformer as swin

        parts = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
        options = parts if name == "swin_v2" else {}
        return swin.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [2, 2], num_classes=5, **options)
    networks = {
        "unet": UNet,
        "preactivation": PreActivationNet,
        "two_inputs": TwoInputNet,
        "transformer": PatchTransformer,
    }
    return networks[name]()


OF_THE_PAPER = {
    "resnet50": lambda: import_torchvision().models.ResNet(
        import_torchvision().models.resnet.Bottleneck, [1, 2, 1, 1], num_classes=10
    ),
    "resnet56": lambda: CifarResNet(2, num_classes=10, shortcut="A", in_channels=3),
}


def _shallow(name: str) -> nn.Module:
    """Return a public network with few blocks in every stage, which has what its family is special for."""
    if name in OF_THE_PAPER:
        return OF_THE_PAPER[name]()
    models = import_torchvision().models
    import timm
    from timm.models.byobnet import model_cfgs

    if name == "convnextv2":
        return timm.create_model("convnextv2_atto", pretrained=False, depths=(1, 1, 2, 1))
    if name == "mobilenet":
        return models.MobileNetV2(inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]])
    if name == "shufflenet":
        return models.ShuffleNetV2([2, 3, 2], [24, 48, 96, 192, 1024])
    if name == "densenet":
        return models.DenseNet(growth_rate=32, block_config=(2, 2, 2, 2), num_init_features=64)
    if name == "efficientnet":
        from torchvision.models.efficientnet import MBConvConfig

        stages = [(1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 5, 1, 40, 112, 1)]
        blocks = [MBConvConfig(*stage, width_mult=1.0, depth_mult=1.0) for stage in stages]
        return models.EfficientNet(blocks, dropout=0.2)
    if name == "regnet":
        from torchvision.models.regnet import BlockParams

        widths = [48, 104, 208]
        return models.RegNet(BlockParams([1, 2, 2], widths, [8, 8, 8], [1.0] * 3, [2] * 3, se_ratio=0.25))
    if name == "resnest":
        from timm.models.resnest import ResNestBottleneck

        options = {"stem_type": "deep", "stem_width": 16, "avg_down": True, "base_width": 16}
        return timm.models.ResNet(ResNestBottleneck, [1, 1, 1, 1], block_args={"radix": 2, "avd": True}, **options)
    if name == "res2net":
        return timm.create_model("res2net50_26w_4s", pretrained=False, layers=(1, 1, 1, 1))
    blocks = [stage[:2] for stage in model_cfgs["mobileone_s0"].blocks]
    return timm.create_model("mobileone_s0", pretrained=False, blocks=blocks)


BUILDERS: dict[str, Callable[[str], nn.Module]] = {
    "torchvision": _torchvision,
    "detection": _detection,
    "timm": _timm,
    "depl0": _depl0,
    "small": _small,
    "shallow": _shallow,
}

NETWORKS = [
    # the three networks of the paper, and what else we ship
    Entry("depl0:vgg16", 32), Entry("depl0:resnet56-A", 32), Entry("depl0:resnet20-B", 32),
    Entry("depl0:lenet5", 28),
    # ours, for what no public network has
    Entry("small:unet"), Entry("small:preactivation", 32), Entry("small:two_inputs", 32),
    # public networks that take long, with few blocks
    Entry("shallow:res2net"), Entry("shallow:mobileone"), Entry("shallow:resnest"),
    Entry("small:vit", 32), Entry("small:transformer", 32), Entry("small:swin", 32), Entry("small:swin_v2", 32),
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
    Entry("timm:resnetv2_50x1_bit", prunable=False),
]  # fmt: skip

SHALLOW = [
    Entry("shallow:densenet"), Entry("shallow:efficientnet"), Entry("shallow:regnet"), Entry("shallow:convnextv2"),
    Entry("shallow:mobilenet"), Entry("shallow:shufflenet"), Entry("shallow:resnet50"), Entry("shallow:resnet56", 32),
]  # fmt: skip
"""for ``make test``; the zoo has these families in their full depth"""

SMALL = [
    "mobilenetv2_035", "mnasnet_small", "semnasnet_050", "mobilenetv3_small_050", "lcnet_035",
    "mobilenetv4_conv_small_035", "starnet_s050", "starnet_s100", "dla46x_c", "dla46_c", "dla60x_c",
    "edgenext_xx_small", "mobilevitv2_050", "ese_vovnet19b_slim_dw", "ese_vovnet19b_slim", "convnext_zepto_rms",
    "convnext_zepto_rms_ols", "convnext_atto_rms", "convnext_atto_ols", "repghostnet_058", "repghostnet_080",
    "ghostnet_050", "ghostnetv2_100", "ghostnetv3_050", "efficientvit_m0", "efficientvit_m1", "efficientvit_b0",
    "regnetx_002", "regnety_002", "regnetx_004", "regnety_004", "iformer_t", "cs3darknet_focus_s", "cs3darknet_s",
    "fasternet_t0", "fasternet_t1", "fastvit_t8", "fastvit_t12",
]  # fmt: skip
"""of timm, at most five million parameters; a test takes its sample from these"""
_FURTHER = [
    "swiftformer_xs", "efficientformerv2_s0", "pvt_v2_b0", "lcnetv2_small", "lcnetv2_base", "inception_next_atto",
    "mobileone_s1", "mobileone_s2", "rexnetr_100", "rexnet_130", "rexnetr_130", "pit_ti_224", "hardcorenas_b",
    "hardcorenas_c", "resnet10t", "resnet14t", "resnet18d", "resnetblur18", "resnet26", "resnet26d", "resnet26t",
    "resnet34", "resnet34d", "coat_tiny", "coat_lite_tiny", "repvit_m0_9", "repvit_m1", "repvit_m1_0",
    "eva02_tiny_patch14_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "convit_tiny",
    "gmlp_ti16_224", "hgnetv2_b0", "hgnetv2_b1", "hgnetv2_b2", "shvit_s1", "shvit_s2", "cpubone_nano", "cpubone_t0",
    "efficientvim_m1", "crossvit_tiny_240", "mambaout_femto", "mambaout_kobe", "maxvit_pico_rw_256",
    "levit_conv_128s", "levit_128", "halonet_h1", "dpn48b", "nf_regnet_b0", "eca_botnext26ts_256", "eca_halonext26ts",
    "lambda_resnet26t", "coatnet_pico_rw_224", "legacy_seresnet18", "resnetv2_18", "resnetv2_18d", "poolformerv2_s12",
    "gcvit_xxtiny", "cait_xxs24_224", "gmixer_12_224", "lowformer_b0", "resmlp_12_224", "resnest26d",
    "legacy_seresnext26_32x4d", "seresnet33ts", "resnet33ts", "gcresnet33ts", "seresnext26ts", "gcresnext26ts",
    "eca_resnext26ts", "resnet32ts", "resnet51q", "selecsls60", "skresnet34", "hrnet_w18_small_v2", "vovnet39a",
    "ese_vovnet39b", "eca_vovnet39b", "mobilenetv3_small_075", "mobilenetv3_rw", "tf_mobilenetv3_small_minimal_100",
    "mobilenetv4_conv_medium", "fbnetv3_b", "efficientnet_b0", "efficientnet_es", "tf_efficientnet_lite0",
    "tinynet_a", "tinynet_d", "mnasnet_100", "spnasnet_100", "mixnet_m", "mobilenetv2_050", "semnasnet_075", "dla34",
    "densenet169", "efficientnet_lite1", "convnext_pico", "convnextv2_femto", "convnext_femto", "darknet17",
    "darknet21", "sedarknet21", "cs3darknet_m", "cspresnext50", "cspresnet50d", "res2net50_14w_8s",
    "res2net50_48w_2s", "resnet50_gn", "resnetv2_50d_gn", "repvgg_a1", "repvgg_b0", "gernet_m",
    "regnetz_c16", "regnetv_040", "regnety_008", "regnetx_008", "mixer_s16_224", "flexivit_small",
    "swin_tiny_patch4_window7_224", "nest_tiny", "twins_pcpvt_small", "twins_svt_small", "visformer_tiny",
    "xcit_nano_12_p16_224", "tiny_vit_5m_224", "vit_tiny_patch16_224", "tnt_s_legacy_patch16_224", "sequencer2d_s",
    "volo_d1_224", "tresnet_m", "xception41p",
]  # fmt: skip
_MORE_OF_TORCHVISION = [
    "resnet34", "shufflenet_v2_x1_5", "mnasnet0_75", "mnasnet1_0", "regnet_x_800mf", "regnet_y_800mf",
    "squeezenet1_0", "efficientnet_b1", "vgg11_bn", "vgg16_bn", "densenet161", "convnext_small",
]  # fmt: skip

_DETECTORS = [
    "fasterrcnn_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn", "maskrcnn_resnet50_fpn_v2",
    "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "ssdlite320_mobilenet_v3_large", "ssd300_vgg16",
    "keypointrcnn_resnet50_fpn",
]  # fmt: skip

_known = {entry.name for entry in NETWORKS}
NETWORKS += [Entry(f"torchvision:{name}") for name in _MORE_OF_TORCHVISION]
NETWORKS += [Entry(f"detection:{name}", 300 if name.startswith("ssd300") else 128) for name in _DETECTORS]
NETWORKS += [Entry(f"timm:{name}") for name in SMALL + _FURTHER if f"timm:{name}" not in _known]


def size_of(entry: Entry, model: nn.Module) -> int:
    """Return the size of images on which a network runs: that of its entry, or else the one it was published with."""
    published = (getattr(model, "default_cfg", None) or {}).get("input_size", (3, 224, 224))[-1]
    if published == entry.size:
        return entry.size
    try:
        with torch.no_grad():
            model.eval()(*_images(entry, entry.size))
    except Exception:
        return int(published)
    return entry.size


def example(entry: Entry, model: nn.Module) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return two random images of a size that the network takes."""
    images = _images(entry, size_of(entry, model))
    return images[0] if len(images) == 1 else images


def _images(entry: Entry, size: int) -> tuple[torch.Tensor, ...]:
    channels = 1 if entry.name.endswith("lenet5") else 3
    image = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    return (image, image.flip(0)) if entry.name == "small:two_inputs" else (image,)
