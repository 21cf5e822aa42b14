"""``python -m depl0`` is the command ``depl0``."""

import sys

from depl0.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
