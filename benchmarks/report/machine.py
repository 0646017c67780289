"""The machine that measures: what it is, how fast it multiplies, and how much it wavers.

Nothing flows in; a frozen ``Machine`` flows out, and stands next to every result. Shares of a machine's rate are shares
of ``gflops``: what one core of it really does in float32, not what its data sheet says.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from time import perf_counter, sleep

SIDE = 1024
"""Of the matrices: three of them fit into a core's share of the last cache level."""
REPETITIONS = 31
LOOKS = 12
BETWEEN = 5.0


@dataclass(frozen=True)
class Machine:
    """A machine, as one benchmark found it."""

    cpu: str
    cores: int
    """That this process may use."""
    memory_gib: float
    gflops: float
    """Median float32 rate of one core: torch, 1024 x 1024 matrices, one thread."""
    noise: float
    """(90th − 10th percentile) ÷ median of the time of that same product, over and over: 0 is a quiet machine."""
    load: float
    """Mean number of runnable processes in the minute before."""


def describe(quiet: float = 1.0, looks: int = LOOKS) -> Machine:
    """Look and measure; takes about a second.

    A machine that wavers by more than ``quiet`` is looked at again, up to ``looks`` times, ``BETWEEN`` seconds apart:
    one busy moment at the start would keep minutes of measuring from being published.
    """
    gflops, noise = matrix_rate()
    for _ in range(looks):
        if noise <= quiet:
            break
        sleep(BETWEEN)
        gflops, noise = matrix_rate()
    return Machine(cpu_model(), len(os.sched_getaffinity(0)), _memory_gib(), gflops, noise, os.getloadavg()[0])


def matrix_rate(repetitions: int = REPETITIONS) -> tuple[float, float]:
    """Median GFLOP/s of one thread, and how much its time wavers."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
        out = torch.empty(SIDE, SIDE)
        seconds = []
        for _ in range(repetitions + 3):
            started = perf_counter()
            torch.mm(left, right, out=out)
            seconds.append(perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    deciles = quantiles(seconds[3:], n=10)  # the first few warm caches and clock up
    return 2 * SIDE**3 / deciles[4] / 1e9, (deciles[8] - deciles[0]) / deciles[4]


def cpu_model() -> str:
    """The processor's name, as far as the machine tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
