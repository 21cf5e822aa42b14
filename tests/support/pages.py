"""The documentation's pages, and the blocks of code in them."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")]
PAGES += [*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/results/**/*.md")]
NAMES = sorted(str(page.relative_to(ROOT)) for page in PAGES)

_FENCE = re.compile(
    r"^(?P<mark><!-- not run: [^>]+ -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    line: int
    runs: bool
    """whether nothing before it says that it is not run"""


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(found["language"], textwrap.dedent(found["text"]), line, runs=not found["mark"])


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of every command ``depl0 …`` in a page's blocks."""
    for block in blocks(page):
        if block.language in ("", "sh", "bash", "console"):
            for line in block.text.replace("\\\n", " ").splitlines():
                if not line.lstrip("$ ").startswith(("depl0 ", "torchrun ")):
                    continue
                words = shlex.split(line.lstrip("$ "), comments=True)
                if words[:1] == ["torchrun"] and "depl0" in words:
                    words = words[words.index("depl0") :]
                if words[:1] == ["depl0"]:
                    yield words[1:]
