"""Table 1 of the paper: pruning methods on CIFAR-10, our runs beside the published rows.

    python reproduce/table1_cifar10.py OUT --data cifar10:DIR
    python reproduce/table1_cifar10.py OUT --data cifar10:DIR --source authors --seeds 0 1 2
    python reproduce/table1_cifar10.py --smoke | --published

GPU days; the expected time is in docs/reproducing-dep-l0.md.
"""

from common import table_of_methods

if __name__ == "__main__":
    table_of_methods(__doc__, "Pruning methods on CIFAR-10", "cifar10", ("vgg16-cifar10", "resnet56-cifar10"))
