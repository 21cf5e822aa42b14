"""The code of a network in one file: the definitions that its constructor needs, from our and the user's files.

Modules of installed packages are imported as they are. Only what the constructor reaches is taken, so that a file of
twenty networks gives one that builds one.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from depl0.errors import ExportError

_DROPPED_DECORATORS = {"register"}
_ADVICE = "write it as names: from that_module import Name; or export with --to pt2."


class Inliner:
    """Gathers top-level statements of modules, each once, those that others need first."""

    def __init__(self, constructor: ModuleType) -> None:
        self._own_folder = _folder(constructor)
        self._imports: dict[str, None] = {}
        self._code: list[str] = []
        self._done: dict[tuple[str, int], None] = {}
        self._owners: dict[str, str] = {}
        self._trees: dict[str, _Module] = {}

    def add(self, module: ModuleType, name: str) -> None:
        """Take the definition of a name of a module, after everything that it needs."""
        tree = self._tree(module)
        statements = tree.bindings.get(name, [])
        for statement in statements:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._import(module, statement, name)
            else:
                self._take(module, tree, statement)
        for statement in tree.changes.get(name, []) if statements else []:
            self._take(module, tree, statement)

    def text(self) -> tuple[str, str]:
        """Return the import lines and the definitions."""
        return "\n".join(sorted(self._imports, key=import_order)), "\n\n\n".join(self._code)

    def _take(self, module: ModuleType, tree: _Module, statement: ast.stmt) -> None:
        key = (module.__name__, statement.lineno)
        if key in self._done:
            return
        self._done[key] = None
        bound = set(_bound(statement))
        for name in sorted(bound):
            owner = self._owners.setdefault(name, module.__name__)
            if owner != module.__name__:
                raise ExportError(
                    f"the network's code cannot be put in one file: {owner} and {module.__name__} both define {name}.",
                    hint="rename one of them, or export with --to pt2.",
                )
        statement = _without_our_decorators(statement)
        for name in _read(statement):
            if name in tree.bindings and name not in bound:  # its own changes come after it
                self.add(module, name)
        self._code.append(tree.source_of(statement))

    def _import(self, module: ModuleType, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        alias = next(alias for alias in statement.names if (alias.asname or alias.name.partition(".")[0]) == name)
        shown = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        if isinstance(statement, ast.Import):
            if self._is_own(alias.name):
                raise ExportError(
                    f"the network's code cannot be put in one file: {module.__file__} imports the module {alias.name} "
                    "as a whole.",
                    hint=_ADVICE,
                )
            self._imports[f"import {shown}"] = None
            return
        source = _absolute(module, statement)
        if source == "__future__":
            return
        if not self._is_own(source):
            self._imports[f"from {source} import {shown}"] = None
            return
        origin = import_module(source)
        if alias.name not in self._tree(origin).bindings:
            raise ExportError(
                f"the network's code cannot be put in one file: {alias.name}, which {module.__file__} imports from "
                f"{source}, is not defined there by name.",
                hint=_ADVICE,
            )
        self.add(origin, alias.name)
        if alias.asname and alias.asname != alias.name:
            self._code.append(f"{alias.asname} = {alias.name}")

    def _is_own(self, name: str) -> bool:
        """Tell whether a module is ours or lies with the user's own files, not among installed packages."""
        if name.partition(".")[0] == "depl0":
            return True
        found = sys.modules.get(name)
        file = getattr(found, "__file__", None)
        if file is None:
            return False
        path = Path(file).resolve()
        return not _is_installed(path) and path.is_relative_to(self._own_folder)

    def _tree(self, module: ModuleType) -> _Module:
        if module.__name__ not in self._trees:
            self._trees[module.__name__] = _Module(module)
        return self._trees[module.__name__]


def is_installed(module: ModuleType) -> bool:
    """Tell whether a module belongs to an installed package or to Python itself; depl0 does not count."""
    if module.__name__.partition(".")[0] == "depl0":
        return False
    file = getattr(module, "__file__", None)
    return file is None or _is_installed(Path(file).resolve())


class _Module:
    """The top level of a module: which statements bind a name, and which change what it stands for."""

    def __init__(self, module: ModuleType) -> None:
        try:
            self.text = Path(str(module.__file__)).read_text(encoding="utf-8")
            tree = ast.parse(self.text)
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            raise ExportError(
                f"the source of {module.__name__}, which builds the network, cannot be read: {error}.",
                hint="export with --to pt2 or --to onnx, which need no source.",
            ) from error
        self.lines = self.text.splitlines()
        self.bindings: dict[str, list[ast.stmt]] = {}
        self.changes: dict[str, list[ast.stmt]] = {}
        for statement in tree.body:
            for name in _bound(statement):
                self.bindings.setdefault(name, []).append(statement)
            root = _changed(statement)
            if root is not None:
                self.changes.setdefault(root, []).append(statement)

    def source_of(self, statement: ast.stmt) -> str:
        """Return a statement as it was written, with the comment lines above it."""
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *[decorator.lineno for decorator in decorators]]) - 1
        above = first
        while above > 0 and self.lines[above - 1].startswith("#") and not self._dropped(statement):
            above -= 1
        return "\n".join(self.lines[above : statement.end_lineno])

    @staticmethod
    def _dropped(statement: ast.stmt) -> bool:
        return bool(getattr(statement, "dropped_decorators", False))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Give the names that a top-level statement binds, inside of if and try too."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        return
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and _stores(n))
        return
    for part in ("body", "orelse", "handlers", "finalbody"):
        for inner in getattr(statement, part, []):
            yield from _bound(inner)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _changed(statement: ast.stmt) -> str | None:
    """Return the name whose thing a statement changes: NAME.append(…), NAME[…] = …, NAME += …."""
    place: ast.AST | None = None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        place = statement.value.func if isinstance(statement.value.func, ast.Attribute) else None
    elif isinstance(statement, ast.AugAssign):
        place = statement.target
    elif isinstance(statement, ast.Assign) and not isinstance(statement.targets[0], (ast.Name, ast.Tuple, ast.List)):
        place = statement.targets[0]
    while isinstance(place, (ast.Attribute, ast.Subscript)):
        place = place.value
    return place.id if isinstance(place, ast.Name) else None


def _read(statement: ast.stmt) -> list[str]:
    """Return the names that a statement mentions, in order."""
    return list(dict.fromkeys(node.id for node in ast.walk(statement) if isinstance(node, ast.Name)))


def _without_our_decorators(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        kept = [d for d in statement.decorator_list if not (isinstance(d, ast.Name) and d.id in _DROPPED_DECORATORS)]
        if len(kept) < len(statement.decorator_list):
            statement.decorator_list = kept
            statement.dropped_decorators = True  # type: ignore[union-attr]
    return statement


def _absolute(module: ModuleType, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    for _ in range(statement.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{statement.module}" if statement.module else package


def _folder(module: ModuleType) -> Path:
    """Return the folder under which modules count as the user's own: that of the constructor's top package."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    return Path(str(getattr(top, "__file__", None) or module.__file__)).resolve().parent


def _is_installed(path: Path) -> bool:
    roots = {Path(root).resolve() for key, root in sysconfig.get_paths().items() if key in _LIBRARIES}
    return any(path.is_relative_to(root) for root in roots)


_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")


def import_order(line: str) -> tuple[bool, bool, str]:
    """Sort as linters do: Python's own modules first, ``import`` before ``from``."""
    name = line.split()[1].partition(".")[0]
    return name not in sys.stdlib_module_names, line.startswith("from"), line
