"""The card of Apple's own processors, which shares the machine's memory, as ``sysctl`` describes it.

Written from documentation, run on no Mac. Metal lets a process take about three quarters of the memory
(``recommendedMaxWorkingSetSize``).
"""

from __future__ import annotations

import platform
import subprocess
import sys

from ..machine import Gpu

METAL = "metal-0"
"""The id of the card: the system gives it none, and there is never a second one."""
_SHARE = 0.75


def read_apple(available: int) -> tuple[Gpu, ...]:
    """The card of this machine, if it has an Apple processor; ``available`` is free main memory in bytes."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return ()
    try:
        done = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string", "hw.memsize"], capture_output=True, timeout=5, text=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse(done.stdout, available)


def parse(text: str, available: int) -> tuple[Gpu, ...]:
    """Read the card from the two lines that ``sysctl`` prints: a name and bytes of memory."""
    lines = text.splitlines()
    if len(lines) != 2 or not lines[1].strip().isdecimal():
        return ()
    memory = int(int(lines[1]) * _SHARE)
    return (Gpu(0, METAL, lines[0].strip(), "metal", memory, min(memory, available)),)
