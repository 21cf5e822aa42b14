"""Memory and time of pruning a language model: measured on small Llamas, computed from shapes for large ones.

    python benchmarks/language_memory.py OUT            # measures the networks that are missing, and writes the page

Makes OUT/language-memory.{json,md}. Every network has random weights. In a process of its own it is analysed (plan), or
pruned to 80 % of the MACs without recovery (prune). The peak is the largest resident set of the process minus the one
before the network was built, so it contains the network itself.

Three terms add up to the computed peak: the weights that are alive at the same time (:data:`COPIES` times the network,
in its own precision), the Gram matrices of a part of the layers, and the activations of one block for all calibration
tokens. The computed time is that of the passes, the Gram matrices, and the greedy removal of MLP channels.
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from common import options, provenance, read_rows, save_rows

COPIES = 3.0
"""copies of the weights at the same time: the network, the refitted one, and the one that runs beside it"""
GRAMS = 0.3e9
"""bytes of Gram matrices, unless one layer needs more"""
PASSES = 3
"""passes over the calibration data: one for scores, and the refit of two networks"""
TOKENS, CONTEXT = 16384, 512
"""calibration tokens, as the guide recommends, and the length of a sequence"""
DEVICES = {"CPU at 1 TFLOPS": 1e12, "GPU at 100 TFLOPS": 100e12}
REMOVAL = 0.65 / 1536**3
"""seconds to remove all channels of an MLP on one CPU thread, by the cube of their number: 0.65 s measured for 1,536"""


@dataclass(frozen=True)
class Llama:
    """The sizes of a Llama."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    tied: bool = True

    @property
    def block(self) -> int:
        """Return the parameters of a block."""
        head = self.hidden // self.heads
        return self.hidden * (2 * self.hidden + 2 * self.groups * head + 3 * self.mlp)

    @property
    def parameters(self) -> int:
        """Return the parameters of the network."""
        return self.layers * self.block + (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def macs(self) -> int:
        """Return the MACs of a token, without those of attention scores."""
        return self.layers * self.block + self.vocabulary * self.hidden


MEASURED = {
    "46 million": Llama(512, 1536, 12, 8, 4, 16384),
    "135 million": Llama(576, 1536, 30, 9, 3, 49152),
}
COMPUTED = {
    "Llama-3.2-1B": Llama(2048, 8192, 16, 32, 8, 128256),
    "Llama-2-7B": Llama(4096, 11008, 32, 32, 32, 32000, tied=False),
}


def peak(llama: Llama, size: int, tokens: int) -> float:
    """Return the computed peak in bytes, with ``size`` bytes for a parameter."""
    grams = max(GRAMS, 16.0 * llama.mlp**2)
    activations = 2 * tokens * size * (3 * llama.hidden + 3 * llama.mlp)  # in two networks
    return COPIES * size * llama.parameters + grams + activations


def hours(llama: Llama, tokens: int, device: str) -> float:
    """Return the computed time: passes and Gram matrices on the device, and removals on the CPU."""
    matrices = llama.layers * (llama.mlp**2 + llama.hidden**2)
    passes = tokens * (2 * PASSES * llama.macs + 4 * matrices) / DEVICES[device]
    return (passes + llama.layers * REMOVAL * llama.mlp**3) / 3600


# -- measurement -----------------------------------------------------------------------------------------------------


def resident() -> int:
    """Return the bytes that the process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(call: str, name: str, dtype: str, tokens: int) -> dict[str, Any]:
    """Build and prune a network in this process."""
    import torch

    import depl0
    import depl0.integrations.transformers  # first: a torchvision of another build would stop transformers

    def build(llama: Llama) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=llama.hidden,
            intermediate_size=llama.mlp,
            num_hidden_layers=llama.layers,
            num_attention_heads=llama.heads,
            num_key_value_heads=llama.groups,
            vocab_size=llama.vocabulary,
            tie_word_embeddings=llama.tied,
        )
        return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()

    def run(network: Any, length: int) -> None:
        data = list(torch.randint(network.config.vocab_size, (tokens // length, length)).split(1))
        if call == "plan":
            depl0.plan(network, data[0][:, :16])
        else:
            depl0.prune(network, data[0][:, :16], data=data, budget=0.8, recover=None, quiet=True)

    def watch() -> None:
        nonlocal most
        while not done.wait(0.005):
            most = max(most, resident())

    torch.manual_seed(0)
    run(build(Llama(64, 96, 2, 4, 2, 256)), tokens // 8)  # loads what is imported when it is needed
    gc.collect()
    before, most, done = resident(), 0, threading.Event()
    network, start = build(MEASURED[name]), time.process_time()
    threading.Thread(target=watch, daemon=True).start()
    run(network, min(CONTEXT, tokens // 8))
    done.set()
    return {
        "call": call,
        "network": name,
        "dtype": dtype,
        "tokens": tokens,
        "weights_gb": sum(p.numel() * p.element_size() for p in network.parameters()) / 1e9,
        "peak_gb": (most - before) / 1e9,
        "seconds": round(time.process_time() - start),
        **provenance(),
    }


# -- page ------------------------------------------------------------------------------------------------------------


def page(rows: list[dict[str, Any]]) -> str:
    """Return the tables."""
    lines = ["# Memory of pruning a language model", "", (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2], ""]
    lines += ["| call | network | precision | tokens | weights | peak, measured | factor | peak, computed |"]
    lines += ["|---|---|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        found, size = MEASURED[row["network"]], 2 if row["dtype"] == "bfloat16" else 4
        computed = "–" if row["call"] == "plan" else f"{peak(found, size, row['tokens']) / 1e9:.2f} GB"
        lines.append(
            f"| {row['call']} | {row['network']} | {row['dtype']} | {row['tokens']:,} | {row['weights_gb']:.2f} GB "
            f"| {row['peak_gb']:.2f} GB | {row['peak_gb'] / row['weights_gb']:.1f} "
            f"| {computed} |"
        )
    lines += ["", f"Computed, for {TOKENS:,} tokens:", ""]
    lines += ["| network | precision | weights | peak | " + " | ".join(DEVICES) + " |"]
    lines += ["|---|---|--:|--:|" + "--:|" * len(DEVICES)]
    for name, llama in COMPUTED.items():
        for dtype, size in (("bfloat16", 2), ("float32", 4)):
            times = " | ".join(f"{hours(llama, TOKENS, device):.1f} h" for device in DEVICES)
            most = peak(llama, size, TOKENS) / 1e9
            lines.append(f"| {name} | {dtype} | {size * llama.parameters / 1e9:.1f} GB | {most:.0f} GB | {times} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing, each in a process of its own, and write the page."""
    parser = options(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--calls", nargs="+", default=["plan", "prune"])
    parser.add_argument(
        "--one", nargs=3, metavar=("CALL", "NETWORK", "DTYPE"), help="measure in this process, and print it"
    )
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*arguments.one, arguments.tokens)))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "language-memory.json"
    rows = read_rows(file)
    for call, network, dtype in product(arguments.calls, MEASURED, ("float32", "bfloat16")):
        if any((r["call"], r["network"], r["dtype"]) == (call, network, dtype) for r in rows):
            continue
        command = [sys.executable, __file__, str(arguments.out), "--tokens", str(arguments.tokens)]
        output = subprocess.run([*command, "--one", call, network, dtype], capture_output=True, text=True, check=True)
        rows.append(json.loads(output.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
        save_rows(file, rows)
    (arguments.out / "language-memory.md").write_text(page(rows))


if __name__ == "__main__":
    main()
