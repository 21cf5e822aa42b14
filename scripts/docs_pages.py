"""Pages of the documentation site that are not in docs/: the reference, generated from the code, and the examples.

MkDocs calls the functions whose names begin with ``on_`` (mkdocs.yml, ``hooks``).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

if TYPE_CHECKING:
    from depl0.app.recipes.sections import Section

ROOT = Path(__file__).parents[1]
AT_ROOT = ("CONTRIBUTING", "CHANGELOG", "SECURITY")


# -- called by MkDocs --------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the repository's address, and with it the edit links, from ``[project.urls]`` in pyproject.toml."""
    address = repository((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if address is not None:
        config.repo_url, config.edit_uri = address, f"{address}/edit/main/docs/"
    return config


def repository(pyproject: str) -> str | None:
    """Return the repository's address, or None while it is the placeholder.

    >>> repository('Repository = "https://github.com/OWNER/depl0"')
    >>> repository('Repository = "https://github.com/somebody/depl0"')
    'https://github.com/somebody/depl0'
    """
    found = re.search(r'^Repository = "(.+)"$', pyproject, re.MULTILINE)
    return None if found is None or "/OWNER/" in found[1] else found[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the examples, and the pages at the repository's root."""
    pages = {"reference/recipe.md": recipe_page(), "reference/commands.md": commands_page()}
    pages |= {f"{name.lower()}.md": _text(f"{name}.md") for name in AT_ROOT}
    pages |= {"examples/index.md": _text("examples/README.md")}
    for script in sorted((ROOT / "examples").glob("*.py")):
        pages[f"examples/{script.stem}.md"] = f"# {script.name}\n\n```python\n{script.read_text()}```\n"
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        pages[f"examples/{notebook.stem}.md"] = notebook_page(notebook)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave the site's pages into links to pages of the site, or to files of the repository."""
    return relink_results(relink(markdown, page.file.src_uri), page.file.src_uri, config.repo_url)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove reStructuredText markup from docstrings."""
    html = re.sub(r":\w+:<code>~?(.*?)</code>", r"<code>\1</code>", html)
    return re.sub(r"\s*::</p>|<p>::</p>", lambda found: "" if found[0].startswith("<p>") else ":</p>", html)


def notebook_page(path: Path) -> str:
    """Return the cells of a notebook as a page."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    return "\n\n".join(f"```python\n{text}\n```" if is_code else text for text, is_code in parts) + "\n"


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def relink(markdown: str, page: str) -> str:
    """Return a page's text with links as on the site.

    >>> relink("[a](../examples/own_loop.py) [b](../CHANGELOG.md)", "integrations.md")
    '[a](examples/own_loop.md) [b](changelog.md)'
    """
    up = "../" * page.count("/")
    if page.startswith("examples/"):
        markdown = re.sub(r"\]\((\w+)\.(?:py|ipynb)\)", r"](\1.md)", markdown)
    if page.removesuffix(".md").upper() in AT_ROOT or page.startswith("examples/"):
        markdown = re.sub(r"\]\((?:\.\./)?docs/", f"]({up}", markdown)
    markdown = re.sub(r"\]\((?:\.\./)+examples/(\w+)\.py\)", rf"]({up}examples/\1.md)", markdown)
    markdown = re.sub(r"\]\((?:\.\./)+examples/?\)", f"]({up}examples/index.md)", markdown)
    at_root = rf"\]\((?:\.\./)+({'|'.join(AT_ROOT)})\.md"
    return re.sub(at_root, lambda found: f"]({up}{found[1].lower()}.md", markdown)


def relink_results(markdown: str, page: str, repo_url: str | None) -> str:
    """Return a page's text whose links to benchmarks/results, which is not in the site, lead to the repository.

    While the repository has no address, only the text of such a link is left.

    >>> relink_results("[a](../../benchmarks/results/zoo.md) ![b](../results/a.svg)", "guides/budget.md", None)
    'a ![b](../results/a.svg)'
    >>> relink_results("[a](../benchmarks/results/zoo.md)", "faq.md", "https://example.org/depl0")
    '[a](https://example.org/depl0/blob/main/benchmarks/results/zoo.md)'
    """
    up = "../" * (page.count("/") + 1)
    goal = r"\1" if repo_url is None else rf"[\1]({repo_url}/blob/main/benchmarks/results/\2)"
    return re.sub(rf"(?<!!)\[([^\]]*)\]\({re.escape(up)}benchmarks/results/([^)\s]*)\)", goal, markdown)


# -- the reference -----------------------------------------------------------------------------------------------------


OF_PRUNE = {"round_to": "8 or 1", "min_share": "0.1"}
"""fields of which `depl0.prune` has defaults of its own"""


class ReadableDefaults(griffe.Extension):
    """Show the values of constants as defaults, and for the fields of a configuration its defaults and descriptions."""

    def on_function(self, *, func: griffe.Function, **others: Any) -> None:
        """Replace defaults in the signature, after the fields of ``**changes`` have become parameters."""
        fields = {**config_fields(), **OF_PRUNE} if func.name == "prune" else config_fields()
        described = {}
        for parameter in func.parameters:
            if parameter.default == "..." and parameter.name in fields:
                parameter.default = described[parameter.name] = fields[parameter.name]
            elif parameter.default is not None and re.fullmatch(r"[A-Z_]+", str(parameter.default)):
                module = import_module(func.module.canonical_path)
                parameter.default = described[parameter.name] = repr(getattr(module, str(parameter.default)))
        if described and func.docstring is not None:
            for section in func.docstring.parsed:
                if section.kind is griffe.DocstringSectionKind.parameters:
                    for parameter in section.value:
                        parameter.value = described.get(parameter.name, parameter.value)
                        parameter.description = parameter.description or "a field of the configuration"


def config_fields() -> dict[str, str]:
    """Return the default of every field of GateConfig and SearchConfig, as Python source."""
    import depl0

    return {
        field.name: repr(field.default)
        for config in (depl0.GateConfig, depl0.SearchConfig)
        for field in dataclasses.fields(config)
    }


# -- every field of a recipe -------------------------------------------------------------------------------------------


def recipe_page() -> str:
    """Return the page with every field of every section of a recipe."""
    from depl0.app.recipes.recipe import SECTIONS

    parts = [
        "# Recipe fields\n",
        "A recipe is a TOML file with these sections. `depl0 recipes show NAME` prints one, `depl0 recipes fields` "
        "lists all fields with their types. Any field can be set on the command line, for example "
        "`--set search.warmup=0.1`. "
        "Names in `[gates]` and `[search]` are those of `depl0.GateConfig` and `depl0.SearchConfig`.\n",
    ]
    for title, section in SECTIONS.items():
        parts.append(
            f"## `[{title}]`\n\n{_inline(_summary(section))}\n\n| field | default | description |\n|---|---|---|"
        )
        parts += [f"| `{name}` | {default} | {_cell(text)} |" for name, default, text in recipe_fields(section)]
        parts.append("")
    return "\n".join(parts)


def recipe_fields(section: type[Section]) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and description of every field of a section."""
    from depl0.app.recipes.toml import describe_fields

    for field in describe_fields([section.title]):
        words = {"none": "none", "": "empty"}
        default = "required" if field["required"] else words.get(field["default"], f"`{field['default']}`")
        yield field["name"].partition(".")[2], default, field["description"]


def _summary(section: type) -> str:
    return inspect.cleandoc(section.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


# -- every command -----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the page with every command, its arguments and options."""
    parts = [
        "# Commands\n",
        "`depl0 COMMAND --help` prints the same. Results go to standard output, progress and errors to standard error. "
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 75 stopped on request (continue with `--resume`).\n",
        "Every command also takes `--debug`, which shows the traceback of an error, and `--trust-code`, which runs "
        "code named by files from elsewhere ([security](../security.md)).\n",
    ]
    for path, command in commands():
        parts.append(_command(path, command))
    return "\n".join(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name on the command line."""
    from depl0.app.cli.app import app

    yield from _walk("depl0", typer.main.get_command(app))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below or (command.callback is not None and path != "depl0"):
        yield path, command
    for name, inner in below.items():
        yield from _walk(f"{path} {name}", inner)


def _command(path: str, command: Any) -> str:
    lines = [f"## {path}\n", _inline(command.help or ""), ""]
    context = command.make_context(path, [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in filter(None, records) if not name.endswith("--help")]
    if rows:
        lines += ["| | |", "|---|---|", *rows]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return _inline(text).replace("|", "\\|")


def _inline(text: str) -> str:
    """Turn the markup of docstrings into Markdown."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    return re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
