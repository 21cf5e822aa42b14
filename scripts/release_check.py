"""Check that a release is consistent: one version everywhere, a dated changelog, and a wheel that installs alone.

    python scripts/release_check.py DIST [--tag v0.1.0]

`make release-check` builds the distributions into DIST first and runs `twine check` on them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def stated_versions(root: Path) -> dict[str, str]:
    """Return the version that each file states, "none" if it states no version."""

    def found(name: str, pattern: str) -> str:
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        return match[1] if match else "none"

    return {
        "pyproject.toml": found("pyproject.toml", r'^version = "(.+)"$'),
        "src/depl0/__init__.py": found("src/depl0/__init__.py", r'^__version__ = "(.+)"$'),
        "CITATION.cff": found("CITATION.cff", r"^version: (.+)$"),
        "CHANGELOG.md": found("CHANGELOG.md", r"^## \[(\d[^\]]*)\] - \d{4}-\d{2}-\d{2}$"),
    }


def problems(root: Path, tag: str | None) -> list[str]:
    """Return one line for every statement that does not agree with the others."""
    versions = stated_versions(root)
    expected = tag.removeprefix("v") if tag else versions["pyproject.toml"]
    return [
        f"{name} states version {version}, expected {expected}"
        for name, version in versions.items()
        if version != expected
    ]


def installs(wheel: Path) -> bool:
    """Return True if the wheel's metadata and package can be used in an environment that has nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            wheel.resolve(),
        ]
        done = subprocess.run(install, check=False)
        show = "import depl0; print(depl0.__version__)"
        return done.returncode == 0 and subprocess.run([python, "-c", show], cwd=folder, check=False).returncode == 0


def main() -> int:
    """Print all problems and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--tag", default=None)
    args = parser.parse_args()
    wrong = problems(ROOT, args.tag or None)
    wheels = sorted(args.dist.glob("*.whl"))
    if len(wheels) != 1:
        wrong.append(f"{args.dist} holds {len(wheels)} wheels, expected one")
    elif not installs(wheels[0]):
        wrong.append(f"{wheels[0].name} does not install alone")
    print("\n".join(wrong) or "the release is consistent")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
