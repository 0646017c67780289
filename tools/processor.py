"""The names of the instruction sets that a program compiled for this processor may contain.

The text is sorted, and stays the same over starts and updates of the system. Standard library only, because nothing is
installed yet.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_LINE = re.compile(r"(?m)^(?:flags|Features|isa)\s*:\s*(.*)$")
"""As Linux has it for Intel and AMD, for ARM, and for RISC-V: the first processor stands for all."""
_X86 = re.compile(
    r"(mmx|3dnow|sse|pni$|ssse3|avx|amx|fma|f16c|xop|tbm|bmi|abm$|popcnt|movbe|adx|cx16|lahf_lm"
    r"|v?aes$|v?pclmul|gfni|sha|sm3|sm4|rdrand|rdseed)"
)
"""Instructions that compilers use; the other flags of Intel and AMD are the kernel's, and come and go with it."""


def instruction_sets() -> str:
    """The instruction sets of this machine; at least the kind of its processor."""
    machine = platform.machine()
    words = _of_apple() if sys.platform == "darwin" else _of_linux()
    if machine in ("x86_64", "AMD64", "i686") and sys.platform != "darwin":
        words = [word for word in words if _X86.match(word)]
    return " ".join([machine, *sorted(set(words))])


def _of_linux() -> list[str]:
    try:
        found = _LINE.search(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
    return found[1].split() if found else []


def _of_apple() -> list[str]:
    """The entries of ``hw.optional`` that are set: a line says "hw.optional.neon: 1"."""
    try:
        done = subprocess.run(["sysctl", "hw.optional"], capture_output=True, text=True)
    except OSError:
        return []
    return [name for name, _, value in (line.partition(": ") for line in done.stdout.splitlines()) if value == "1"]
