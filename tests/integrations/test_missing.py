"""Without a trainer's package, its integration says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from depl0._util.optional import install_command

pytestmark = pytest.mark.integrations


@pytest.mark.parametrize(
    ("integration", "packages"),
    [("lightning", ("lightning", "pytorch_lightning")), ("transformers", ("transformers",))],
)
def test_the_missing_extra_is_named(integration: str, packages: tuple[str, ...]) -> None:
    hide = "".join(f"sys.modules[{package!r}] = None; " for package in packages)
    code = f"import sys; {hide}import depl0.integrations.{integration}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-2:]
    assert last == [
        f"depl0.errors.NotInstalledError: {integration} is needed for depl0.integrations.{integration}, "
        "but not installed.",
        f"hint: {install_command(integration)}",
    ]
