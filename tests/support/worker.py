"""What one of several processes does: the command, and a note of the network that this process ended with.

``torchrun --nproc-per-node 2 tests/support/worker.py FOLDER ARGUMENTS…``
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import depl0.app.training.prune as prune
from depl0.app.cli.app import main


def note_network(folder: Path) -> None:
    finalize = prune.finalize

    def noting(session: Any, gated: Any, compact: Any, *rest: Any) -> Any:
        digest = hashlib.sha256()
        for tensor in compact.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        summary = finalize(session, gated, compact, *rest)
        found = {
            "weights": digest.hexdigest(),
            "accuracy": summary["compact"]["accuracy"],
            "gates": session.state.frozen_gates,
        }
        (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
        return summary

    prune.finalize = noting


if __name__ == "__main__":
    note_network(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
