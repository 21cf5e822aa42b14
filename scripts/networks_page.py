"""Write docs/networks.md, the list of supported networks, from the table that `make zoo` printed.

python scripts/networks_page.py      # reads benchmarks/results/zoo.md
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "zoo.md"
PAGE = ROOT / "docs" / "networks.md"
LIBRARIES = {
    "torchvision": "torchvision",
    "timm": "timm",
    "detection": "Detectors of torchvision",
    "depl0": "depl0's own models",
    "small": "Small test networks",
    "shallow": "timm, with fewer blocks",
}
ROW = re.compile(r"^(\w+):(\S+) +([\d.]+%) +([\d.e+-]+) +([\d.]+%) +([\d.]+%) +(?:\d+ +)?[\d.]+ s +(.*)$")
OUTPUT = "reaches the network's output"


@dataclass(frozen=True)
class Row:
    """One network of the table."""

    library: str
    name: str
    prunable: str
    smallest: str
    reason: str


def rows(table: str) -> list[Row]:
    """Return the networks of the table, sorted by name."""
    found = (ROW.match(line) for line in table.splitlines())
    parsed = [Row(m[1], m[2], m[3], m[6], main_reason(m[7])) for m in found if m]
    return sorted(parsed, key=lambda row: row.name)


def main_reason(text: str) -> str:
    """Return the first reason for unprunable channels that is not the network's output.

    >>> main_reason("reaches the network's output [1000]; sum over channels (at layer4.0) [1536]")
    'sum over channels'
    """
    reasons = (re.sub(r" (?:\(at|\[\d).*", "", part.strip()) for part in text.split(";"))
    others = [reason for reason in reasons if reason and not reason.startswith(OUTPUT[:20])]
    return next((reason for reason in others if " " in reason and len(reason) > 12), "")


def page(networks: list[Row], date: str) -> str:
    """Return the page."""
    smallest = [float(row.smallest.rstrip("%")) for row in networks]
    below = sum(value <= 10 for value in smallest)
    parts = [INTRODUCTION.format(count=len(networks), date=date, median=f"{median(smallest):g}", below=below)]
    for library, title in LIBRARIES.items():
        part = [row for row in networks if row.library == library]
        parts.append(f"## {title}\n\n| network | prunable | smallest | unprunable because |\n|---|---|---|---|")
        parts += [f"| {row.name} | {row.prunable} | {row.smallest} | {row.reason} |" for row in part]
        parts.append("")
    return "\n".join(parts) + NOT_RUN


INTRODUCTION = """\
# Supported networks

**{count} networks were pruned in the last full run ({date}), and all results were exact.** The run attached gates with
random values to each network (30 % of them closed), extracted the pruned model, and compared its outputs with those of
the gated model in float64: on the example, on other batches, on other image sizes if the network accepts them, and in
training mode. Weights were untrained.

Networks that are not listed usually work too. `depl0 plan timm:NAME` prints the plan of any network of timm or
torchvision, and `print(depl0.plan(model, example))` that of your own.

- *prunable*: the fraction of all channels that can be removed.
- *smallest*: the fraction of the MACs that is left if only one channel of every group stays. The median is {median} %,
  and it is at most 10 % for {below} of the networks.
- *unprunable because*: the first reason besides the channels of the network's output, which always stay.
"""

NOT_RUN = """\
## Not run

58 networks of the list have no result, because small networks were taken first. Most networks with attention and the
largest networks are among them: for example ViT-B/16, MaxViT, CaiT, XCiT and DeepLabV3. `make test` prunes and compares
a sample of all families.

Language models and encoders of transformers (BERT, GPT-2, Llama, Qwen, Mistral, mixtures of experts) are tested in
`tests/integrations` with few layers. YOLOv8 to YOLO12 are tested by `make yolo`.

`scripts/networks_page.py` writes this page from the table of `make zoo`.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(rows(TABLE.read_text(encoding="utf-8")), "2026-11-17"), encoding="utf-8")


if __name__ == "__main__":
    main()
