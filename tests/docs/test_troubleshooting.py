"""Every message on the page of troubleshooting is one that depl0 raises."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^### (.+)$", PAGE, re.MULTILINE)))
FROM_OTHERS = {"operator torchvision::nms does not exist"}


@pytest.fixture(scope="module")
def texts() -> str:
    """Every string in the package, with … for the parts that vary."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_messages_exist(texts: str) -> None:
    unknown = [
        message
        for message in MESSAGES
        if message not in FROM_OTHERS
        and not re.search(r"[^\n]*?".join(map(re.escape, message.strip("… ").split("…"))), texts)
    ]
    assert len(MESSAGES) > 30
    assert unknown == []
