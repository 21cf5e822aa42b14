"""Do int8 products saturate on this processor?

x86 processors multiply uint8 activations by int8 weights and add neighbouring products. With VNNI the sum has 32 bits.
Without it, it has 16, and 255·127 + 255·127 does not fit: outputs are silently wrong. With weights of 7 bits it fits.
"""

from __future__ import annotations

import platform
from pathlib import Path

X86 = ("x86_64", "amd64")
VNNI = {"avx512_vnni", "avx_vnni"}
"""what Linux calls the instructions"""


def weight_bits() -> int:
    """Return how many bits int8 weights may use here without saturation: 8, or 7 on x86 without VNNI."""
    if platform.machine().lower() not in X86:
        return 8
    return 8 if VNNI & instructions() else 7


def instructions() -> set[str]:
    """Return the instruction sets of the processor; nothing where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
