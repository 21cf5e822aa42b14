"""The files that build a dense network: the user's own are copied as they are, installed packages are imported."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from depl0.errors import ExportError

_INSTEAD = "or export with --to pt2 or --to onnx, which need no source."


def copied_sources(module: ModuleType) -> tuple[str, dict[str, str]]:
    """Return the name by which an exported folder imports a module, and the files that it needs for that.

    These are the module's own file and, of what it imports, every file that lies beside it or below and is not
    installed. A single file is called ``network.py``.
    """
    if is_ours(module):
        return "network", {"network.py": _without_depl0(module)}
    if _is_installed(module):
        return module.__name__, {}
    own = _file_of(module)
    parts = module.__name__.split(".")
    root = own.parents[len(parts) if own.name == "__init__.py" else len(parts) - 1]
    texts: dict[Path, str] = {}
    _gather(module, root, texts)
    if set(texts) == {own} and len(parts) == 1:
        return "network", {"network.py": texts[own]}
    files = {path.relative_to(root).as_posix(): text for path, text in texts.items()}
    if "model.py" in files:
        raise ExportError(
            f"{root / 'model.py'} cannot be copied: the folder has a model.py of its own.",
            hint=f"rename the file, {_INSTEAD}",
        )
    shown = own.relative_to(root).with_suffix("").as_posix().removesuffix("/__init__")
    return shown.replace("/", "."), files


def is_ours(module: ModuleType) -> bool:
    """Whether a module is one of depl0's reference networks, which an exported folder must not import."""
    return module.__name__.partition(".")[0] == "depl0"


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = {Path(root).resolve() for kind, root in sysconfig.get_paths().items() if kind in kinds}
    return file is None or any(Path(file).resolve().is_relative_to(root) for root in roots)


def _file_of(module: ModuleType) -> Path:
    return Path(str(module.__file__)).resolve()


def _gather(module: ModuleType, root: Path, texts: dict[Path, str]) -> None:
    """Read a module's file and those of the modules that it imports from the same folder."""
    path = _file_of(module)
    if path in texts:
        return
    texts[path] = _read(path, module)
    for name in _imported(module, texts[path]):
        found = sys.modules.get(name)
        if found is None or _is_installed(found) or is_ours(found):
            continue
        if _file_of(found).is_relative_to(root):
            _gather(found, root, texts)


def _read(path: Path, module: ModuleType) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise ExportError(
            f"the source of {module.__name__}, which builds the network, cannot be read: {error}.",
            hint=f"check the file, {_INSTEAD}",
        ) from error
    return text


def _imported(module: ModuleType, text: str) -> Iterator[str]:
    """Give the names of all modules that may be imported, the packages around them included."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names = [f"{source}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _without_depl0(module: ModuleType) -> str:
    """Return the code of a reference network, and of what those share, as one file that does not import depl0."""
    blocks = _file_of(module).with_name("_building_blocks.py")
    texts = [path.read_text(encoding="utf-8") for path in (blocks, _file_of(module))]
    title = texts[1].partition("\n\n")[0]
    bodies = [text.partition("from __future__ import annotations\n")[2] for text in texts]
    body = "\n".join(re.sub(r"^(from depl0\b.*|@register)\n", "", each, flags=re.MULTILINE).strip() for each in bodies)
    return f"{title}\n\nfrom __future__ import annotations\n\n{_ERROR}\n\n{body}\n"


_ERROR = '''
class InputError(ValueError):
    """A size that the network cannot be built with."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
'''
