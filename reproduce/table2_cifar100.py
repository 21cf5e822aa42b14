"""Table 2 of the paper: pruning methods on CIFAR-100, our runs beside the published rows.

    python reproduce/table2_cifar100.py OUT --data cifar100:DIR
    python reproduce/table2_cifar100.py OUT --data cifar100:DIR --source authors --seeds 0 1 2
    python reproduce/table2_cifar100.py --smoke | --published

GPU days; the expected time is in docs/reproducing-dep-l0.md.
"""

from common import table_of_methods

if __name__ == "__main__":
    table_of_methods(__doc__, "Pruning methods on CIFAR-100", "cifar100", ("vgg16-cifar100", "resnet56-cifar100"))
