"""Figure 5 of the paper (appendix C): filters and prune ratio of each layer of ResNet-56 on CIFAR-10.

    python reproduce/figure5_structure.py OUT --data cifar10:DIR
    python reproduce/figure5_structure.py --smoke | --published

Writes OUT/figure5.svg and OUT/figure5.json.
"""

from structure import figure

PAPER = "Dep-L0 prunes every layer at a similar rate, L0-HC at very different ones, sometimes all or nothing."

if __name__ == "__main__":
    figure(__doc__, "figure5", ("resnet56-cifar10",), PAPER)
