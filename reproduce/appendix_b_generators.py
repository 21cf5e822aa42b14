"""Table 5 and appendix B of the paper: which network should generate the gates?

    python reproduce/appendix_b_generators.py OUT --data cifar10:DIR                              # VGG16, fixed λ
    python reproduce/appendix_b_generators.py OUT --network lenet5 --data fashion-mnist:DIR --seeds 0 1 2
    python reproduce/appendix_b_generators.py --smoke | --published

The paper compares the generators on VGG16, and tries the LSTM on LeNet-5 with 70 filters, because it does not converge
for the 4,224 filters of VGG16. Here LeNet-5 runs every generator, at a budget of 10 % of the MACs.

Biases. (12) and table 5 print none. Like the authors' code, every layer of a generator has a bias, and the last one
starts from N(3, 0.01), so that gates start open: FC(c1, c2) has c2 of them, FC(c1, 2·c2) FC(2·c2, c2) 2·c2 + c2, each
Conv1d one. The paper's LSTM has one output for all gates, and so one bias for all: ``lstm-shared``. ``bias`` is FC
with its weights held at 0, a control.
"""

from __future__ import annotations

import argparse
import statistics

from common import RESULT, options, own_row, parsed, published, recipe, run, show

GENERATORS = ("fc", "fc-relu", "fc-tanh", "conv1d", "conv1d-deep", "lstm-shared", "bias", "independent")
NETWORKS = {"vgg16": "vgg16-cifar10-{source}", "lenet5": "lenet5-fashion-mnist-70"}
COLUMNS = {"data": "data set", "model": "model", "generator": "generator", **RESULT}


def own_rows(args: argparse.Namespace) -> list[dict[str, str]]:
    """Run every generator, seed by seed, and return the mean over seeds for each."""
    name = NETWORKS[args.network].format(source=args.source)
    found: dict[str, list[dict[str, str]]] = {}
    for seed in args.seeds:
        for generator in args.generators:
            fields = {
                "gates__generator": generator,
                "gates__method": "l0-hc" if generator == "independent" else "dep-l0",
            }
            if args.network == "lenet5":
                fields["gates__budget"] = args.budget
            made = recipe(name, args, seed, search__dense_baseline=False, **fields)
            _, summary = run(args, made, args.network, generator)
            found.setdefault(generator, []).append(own_row(name, made, summary) | {"method": ""})
    return [mean(rows) for rows in found.values()]


def mean(rows: list[dict[str, str]]) -> dict[str, str]:
    """Return one row for all seeds of a generator: mean ± sample standard deviation of accuracy and costs."""
    if len(rows) == 1:
        return rows[0]
    figures = {}
    for key in ("after", "flops_cut", "params_cut"):
        values = [float(row[key]) for row in rows]
        figures[key] = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    source = rows[0]["source"].rpartition(", seed")[0]
    return rows[0] | figures | {"flops": "", "params": "", "source": f"{source}, n = {len(rows)}"}


def main() -> None:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--network", choices=tuple(NETWORKS), default="vgg16")
    parser.add_argument("--generators", nargs="+", default=GENERATORS, choices=GENERATORS)
    parser.add_argument("--budget", type=float, default=0.1, help="fraction of the MACs that LeNet-5 keeps")
    args = parsed(parser)
    rows = published("ablation") + ([] if args.published else own_rows(args))
    note = "The paper prints MACs as FLOPs. bias is FC with W = 0, independent is L0-HC; both are ours, not table 5's."
    print(show("Architectures of the gate generator", COLUMNS, rows, note))


if __name__ == "__main__":
    main()
