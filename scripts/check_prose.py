"""Check docstrings, error messages and documentation for phrases that CONTRIBUTING.md asks to avoid.

    python scripts/check_prose.py [PATH ...]      # default: the package, the documentation and the pages at the root

Docstrings are checked up to their first blank line. Code blocks of pages are not checked. A line of a page that quotes
a phrase on purpose ends with ``<!-- prose: ok -->``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PATHS = ("src", "docs", "examples", "reproduce", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
DENIED = {
    r"^(?:Give|Tell|Say|Refuse|Let|Hand|Bring)s?\b": "begin with Return, Raise, Check or Yield",
    r"\b(?:return|returns|keep|of|with|from) whatever\b|^(?:What|Whatever|Who)\b(?!.*\?$)": "name the noun",
    r"\b[Ww]hat (?:is|was) (?:left|missing|removed|kept|closed|there)\b": "name the noun: the remaining channels",
    r"\b(?:none|empty|only|except) where\b|\bwhere (?:there|nothing|none|one) (?:is|are)\b": "write if or when",
    r"\b(?:is|are|was|be) told\b|\btells (?:whether|how)\b": "objects do not speak: write receives, reports or records",
    r"\bprocessor(?:'s)? (?:time|seconds)\b": "write CPU time",
    r"\b(?:anew|nobody|somebody|none comes|so many|whole numbers?|at rest)\b": "archaic: again, no one, an integer",
    r"\b(?:storeys?|upstairs|ground floor|livened|lively|rungs?)\b": "private metaphor: use the field's term",
    r"\b[Tt]he (?:aim|goal) was\b": "no diary: the table has the number",
    r"\brefit(?:ted)? in closed form\b": "write refitted by least squares",
    r"\bdense one's answers\b|\blearns? from the answers\b": "write distillation from the original model",
}
FOUND = [(re.compile(pattern), advice) for pattern, advice in DENIED.items()]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and text of every checked passage of a file."""
    source = path.read_text(encoding="utf-8")
    return page_lines(source) if path.suffix == ".md" else python_texts(ast.parse(source))


def python_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the first paragraphs of docstrings, and the texts of raised errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield getattr(node, "lineno", 1), " ".join(text.split("\n\n")[0].split())
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def page_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of code blocks."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and "<!-- prose: ok -->" not in line:
            yield number, line.strip()


def main(paths: list[Path]) -> int:
    """Print every denied phrase, and return the exit code."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    count = 0
    for file in files:
        for line, text in texts(file) if file.suffix in (".py", ".md") else ():
            for pattern, advice in FOUND:
                if hit := pattern.search(text):
                    count += 1
                    print(f"{file}:{line}: {hit[0]!r}: {advice}")
    return 1 if count else 0


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    sys.exit(main([Path(each) for each in sys.argv[1:]] or [root / each for each in PATHS]))
