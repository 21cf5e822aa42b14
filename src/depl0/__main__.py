"""``python -m depl0`` is the command ``depl0``, whose packages are an extra."""

import sys

from depl0.errors import NotInstalledError


def main() -> int:
    """Run the command; return its exit code. Without the packages that it needs, say how to install them."""
    try:
        from depl0.app.cli.app import main as run
    except NotInstalledError as error:
        print(f"error: {error.message} hint: {error.hint}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
