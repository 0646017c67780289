"""How fast a device multiplies and moves memory: run as a program in a process of its own, it prints both as JSON.

``python -P -m marlaas.engine.devices.measuring cpu CORE`` measures one core in float32; ``cuda`` and ``metal`` the only
card that the process sees, in the type that a base is kept in there. Takes about a second after torch is there. Rates
are medians over short runs, because the first ones warm caches and clocks up, and others use the machine as well.
On cards this has never run.
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
"""For each of the two rates."""
RUNS = 5
"""At least, whatever they take."""
SIDES = {"cpu": 1024, "cuda": 8192, "metal": 4096}
"""Of the square matrices: enough work to fill the device, little enough to be done soon."""
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
    """bfloat16 where the card computes in it by itself, else the other half precision."""
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
    """Measure, print."""
    kind, *core = sys.argv[1:]
    if core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core[0])})
    if kind == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, whose thread pools read it
    rates = measure(kind)
    print(json.dumps({"matrix": rates.matrix, "bandwidth": rates.bandwidth}))


if __name__ == "__main__":
    main()
