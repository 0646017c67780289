"""Which instruction sets a program compiled for this processor may contain, and whether another llama.cpp fits it.

The text of names is sorted, and stays the same over starts and updates of the system. Standard library only, because
nothing is installed yet.
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

V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "cx16", "lahf_lm", "popcnt", "sse4_2")
"""Linux's words for x86-64-v3, which compilers mean as a whole."""
GENERIC = {
    "x86_64": {"SSE3", "SSSE3", "SSE42", "AVX", "AVX2", "F16C", "FMA", "BMI2"},
    "aarch64": {"NEON", "ARM_FMA"},
}
"""By machine: the sets that builds for many processors contain, as llama.cpp calls them. A build for the processor that
made it reports more, or runs where x86-64-v3 does: each newer generation for which compilers write other instructions
by themselves has a set that llama.cpp reports and that is not here (AVX_VNNI, AVX512; DOTPROD, SVE)."""
NO_INSTRUCTIONS = {"LLAMAFILE", "OPENMP", "REPACK", "AARCH64_REPACK", "ACCELERATE"}
"""What llama.cpp reports besides instruction sets."""


def misfit(reported: str, processor: str) -> str:
    """Why a llama.cpp may contain an instruction that this processor lacks, as a clause; empty if it cannot.

    ``reported``: what its ``llama_print_system_info`` returns, names of what was switched on at compile time:
    ``CPU : SSE3 = 1 | AVX2 = 1 | OPENMP = 1 |``; ``processor``: as ``instruction_sets`` has it.
    """
    machine, *known = processor.split()
    names = {name for name, value in re.findall(r"(\w+) = (\w+)", reported) if value != "0"} - NO_INSTRUCTIONS
    if "CPU : " not in reported or machine not in GENERIC:
        return "it does not say which instructions it contains"
    if more := sorted(names - GENERIC[machine]):
        return f"it was compiled for one kind of processor ({', '.join(more)})"
    needed = V3 if machine == "x86_64" else ("asimd",)
    if lacking := [name for name in needed if name not in known]:
        return f"this processor lacks {', '.join(lacking)}"
    return ""


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
