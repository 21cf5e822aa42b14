"""Figure 4 of the paper: filters and prune ratio of each layer.

    python reproduce/figure4_structure.py OUT --networks resnet56-cifar100 --data cifar100:DIR
    python reproduce/figure4_structure.py --smoke | --published

Writes OUT/figure4.svg and OUT/figure4.json.
"""

from structure import figure

PAPER = (
    "on VGG16 both methods prune deeper layers more. On ResNet-56 and CIFAR-100, Dep-L0 prunes about 20 % of the\n"
    "first 12 layers and 30 % of the others; L0-HC prunes 5 of 28 layers completely and six not at all. On\n"
    "ResNet-50, Dep-L0 prunes all layers at a similar rate, and L0-HC none."
)

if __name__ == "__main__":
    figure(__doc__, "figure4", ("vgg16-cifar10", "resnet56-cifar100", "resnet50-imagenet"), PAPER)
