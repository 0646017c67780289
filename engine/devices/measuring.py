"""Measures how fast a device multiplies matrices and moves memory. Run as a program, it prints both rates as JSON.

``python -P -m marlaas.engine.devices.measuring cpu CORE`` measures one core in float32; ``cuda`` and ``metal`` measure
the only card that the process sees, in the type that a base is kept in there. It takes about a second after torch is
loaded. Rates are medians over short runs, because the first runs warm up caches and clocks, and others use the machine
as well. On cards this has never run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from .machine import Rates

if TYPE_CHECKING:
    import torch

SECONDS = 0.4
"""Seconds to measure each of the two rates."""
RUNS = 5
"""The least number of runs, however long they take."""
SIDES = {"cpu": 1024, "cuda": 8192, "metal": 4096}
"""Rows of the square matrices: enough work to fill the device, but done soon."""
MOVED = {"cpu": 1 << 26, "cuda": 1 << 30, "metal": 1 << 28}
"""Bytes that are copied at once: more than any cache holds."""


def measure(kind: str) -> Rates:
    """Measure the device of this process. Raises what torch raises where it cannot compute there."""
    import torch

    device = torch.device({"cpu": "cpu", "cuda": "cuda", "metal": "mps"}[kind])
    settle = {"cpu": lambda: None, "cuda": torch.cuda.synchronize, "metal": torch.mps.synchronize}[kind]
    side, moved = SIDES[kind], MOVED[kind]
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        moved = max(1 << 20, min(moved, free // 8))
        side = SIDES[kind] if free > 32 * SIDES[kind] ** 2 else 1024
    left, right, out = (torch.ones(side, side, dtype=_type_of(kind), device=device) for _ in range(3))
    multiply = _pace(lambda: torch.mm(left, right, out=out), settle)
    source = torch.ones(moved, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    move = _pace(lambda: target.copy_(source), settle)
    return Rates(2 * side**3 / multiply, 2 * moved / move)


def _type_of(kind: str) -> torch.dtype:
    """float32 for the processor; for a card bfloat16 if it supports it, else float16."""
    import torch

    if kind == "cpu":
        return torch.float32
    plain = kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if plain else torch.bfloat16


def _pace(work: Callable[[], object], settle: Callable[[], object]) -> float:
    """Median seconds of one run."""
    work()
    settle()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < RUNS or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        settle()
        taken.append(time.perf_counter() - begun)
    return median(taken)


def main() -> None:
    """Measure the device that the arguments name, and print its rates."""
    kind, *core = sys.argv[1:]
    if core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core[0])})
    if kind == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # must be set before torch is loaded
    rates = measure(kind)
    print(json.dumps({"matrix": rates.matrix, "bandwidth": rates.bandwidth}))


if __name__ == "__main__":
    main()
