"""Table 3 of the paper: pruning methods on ImageNet, our runs beside the published rows.

    python reproduce/table3_imagenet.py OUT --data imagenet:DIR
    python reproduce/table3_imagenet.py OUT --data imagenet:DIR --source authors --seeds 0 1 2
    python reproduce/table3_imagenet.py --smoke | --published

GPU days; the expected time is in docs/reproducing-dep-l0.md.
"""

from common import table_of_methods

if __name__ == "__main__":
    table_of_methods(__doc__, "Pruning methods on ImageNet", "imagenet", ("resnet50-imagenet",))
