"""Coverage-guided fuzzing of every reader: ``python -m tests.fuzz [NAME] [libFuzzer's options]``.

With a name (``recipe.toml``) one reader is fuzzed, without one all of them are, ``DEPL0_RUNS`` executions together.
What finds new branches is kept in ``build/fuzz``, and so is a file that breaks a reader: add it to ``tests/attacks``
when the reader is mended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SHARES = {
    "state.json": 150, "state.safetensors": 60, "recipe.toml": 330,
    "weights.safetensors": 40, "gates.jsonl": 60, "metrics.jsonl": 60, "summary.json": 120, "environment.json": 70,
    "study.json": 60, "weights.pt": 20, "compact.json": 15, "compact.safetensors": 15,
}  # fmt: skip
"""of a thousand executions: more for readers that are quick, or have many branches"""
RUNS = 1_000_000


def main() -> int:
    """Fuzz one reader, or all, and return the worst exit code."""
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        fuzz(sys.argv[1], sys.argv[2:])
    runs, codes = int(os.environ.get("DEPL0_RUNS", RUNS)), []
    for name, share in SHARES.items():
        print(f"fuzzing {name}: {runs * share // 1000:,} executions", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", name, f"-runs={runs * share // 1000}", "-verbosity=0"]
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
            done = subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env={**os.environ, "TMPDIR": scratch})
        codes.append(done.returncode)
        if codes[-1]:
            print(f"{name} failed with {codes[-1]}; the file that did it is in build/fuzz", flush=True)
    return max(map(abs, codes))


def fuzz(name: str, options: list[str]) -> None:
    """Fuzz one reader; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["depl0", "tomllib"], enable_loader_override=False):
        from depl0.errors import Depl0Error
        from tests.support.readers import READERS, prepared
    from tests.support.hostile_values import damaged_tree

    scratch = Path(tempfile.mkdtemp())
    os.environ["DEPL0_CACHE"] = str(scratch / "cache")
    path, read = prepared(name, scratch / "files"), READERS[name]

    def once(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except Depl0Error as error:
            assert str(error)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        """Change a JSON file as a tree half of the time, and bytes otherwise."""
        rng = Random(seed)
        if path.suffix == ".json" and rng.random() < 0.5:
            try:
                return json.dumps(damaged_tree(rng, json.loads(data))).encode()[:size]
            except (ValueError, RecursionError):
                pass
        return bytes(atheris.Mutate(data, size))

    found, seeds = ROOT / "build" / "fuzz" / name, scratch / "seeds"
    found.mkdir(parents=True, exist_ok=True)
    seeds.mkdir()
    (seeds / "good").write_bytes(path.read_bytes())
    folders = [found, seeds, *(folder for folder in [HERE / "corpus" / name] if folder.is_dir())]
    limits = ["-timeout=30", "-rss_limit_mb=2500", "-max_len=8192", f"-artifact_prefix={found}-"]
    atheris.Setup([sys.argv[0], *limits, *options, *map(str, folders)], once, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
