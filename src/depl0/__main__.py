"""``python -m depl0`` is the command ``depl0``, whose packages are an extra."""

import os
import sys

from depl0 import __version__
from depl0.errors import NotInstalledError


def main() -> int:
    """Run the command; return its exit code. Without the packages that it needs, say how to install them."""
    if sys.argv[1:] == ["--version"]:  # needs no extra
        print(f"depl0 {__version__}")
        return 0
    if sys.argv[1:2] in (["prune"], ["compare"]) and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported; see app/runtime/execution.py
    try:
        from depl0.app.cli.app import main as run
    except NotInstalledError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
