"""What pyproject.toml cannot say: the project's page on a package index, and wheels that are the same byte for byte.

A README's relative links lead nowhere on a package index. They become absolute ones where pyproject.toml names a
Repository under [project.urls], and plain text where it does not. A wheel holds a bill of materials (PEP 770) that is
made of its own metadata, and the permissions of its files do not depend on who has checked them out.
"""

import email
import json
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).parent
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def index_page(readme: str, repository: "str | None") -> str:
    """Return the README for a package index."""

    def absolute(found: "re.Match[str]") -> str:
        picture, words, path = found.groups()
        if repository is not None:
            kind = "raw" if picture else "blob"
            return f"{picture}[{words}]({repository.rstrip('/')}/{kind}/main/{path})"
        return "" if picture else words

    return RELATIVE.sub(absolute, readme)


def repository() -> "str | None":
    """Return the address under [project.urls], or None while it is the placeholder."""
    found = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return None if found is None or "/OWNER/" in found[1] else found[1]


def bill_of_materials(metadata: str) -> str:
    """Return what a wheel needs as CycloneDX JSON: it bundles nothing, so versions are ranges, as its metadata says."""
    described = email.message_from_string(metadata)
    name, version = described["Name"], described["Version"]
    required: dict[str, list[str]] = {}
    for requirement in described.get_all("Requires-Dist", []):
        package = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
        if package != name:  # extras that are made of others
            required.setdefault(package, []).append(requirement)
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{package}",
            "name": package,
            "purl": f"pkg:pypi/{package}",
            "scope": "optional" if all("extra ==" in entry for entry in entries) else "required",
            "properties": [{"name": "python:requires-dist", "value": entry} for entry in sorted(set(entries))],
        }
        for package, entries in sorted(required.items())
    ]
    own = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "description": described["Summary"],
        "licenses": [{"license": {"id": described["License-Expression"]}}],
    }
    needs = {"ref": own["bom-ref"], "dependsOn": [component["bom-ref"] for component in components]}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": own}}
    return json.dumps({**bill, "components": components, "dependencies": [needs]}, indent=1) + "\n"


class ReproducibleWheel(bdist_wheel):
    """A wheel that is the same byte for byte wherever it is built, given SOURCE_DATE_EPOCH and one setuptools."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Add the bill of materials to the metadata."""
        super().egg2dist(egginfo_path, distinfo_path)
        folder = Path(distinfo_path) / "sboms"
        folder.mkdir(exist_ok=True)
        metadata = (Path(distinfo_path) / "METADATA").read_text(encoding="utf-8")
        (folder / "depl0.cdx.json").write_text(bill_of_materials(metadata), encoding="utf-8")

    def write_wheelfile(self, *args: object, **kwargs: object) -> None:
        """Give all files the same permissions, just before they are packed."""
        super().write_wheelfile(*args, **kwargs)
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    setup(
        cmdclass={"bdist_wheel": ReproducibleWheel},
        long_description=index_page((ROOT / "README.md").read_text(encoding="utf-8"), repository()),
        long_description_content_type="text/markdown",
    )
