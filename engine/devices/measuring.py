"""Measures how fast a device multiplies matrices and moves memory, and prints both rates as JSON, as a program.

``python -P -m marlaas.engine.devices.measuring cpu CORE`` measures one core in float32 and in bfloat16; ``cuda`` and
``metal`` measure the only visible card. Rates are medians over short runs; a core's are of its processor time. On cards
this has never run.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

from .machine import Rates

if TYPE_CHECKING:
    import torch

SECONDS = 0.4
RUNS = 5
SIDES = {"cpu": 1024, "cuda": 8192, "metal": 4096}
"""Rows of the square matrices: enough to fill the device, but soon done."""
FEW = 32
EMULATED = 20e9
"""Least bfloat16 operations a second of a core with instructions for it; ten times those of one without."""
MOVED = {"cpu": 1 << 26, "cuda": 1 << 30, "metal": 1 << 28}


def measure(kind: str) -> Rates:
    """Measure the device of this process. Raises torch's errors."""
    import torch

    device = torch.device({"cpu": "cpu", "cuda": "cuda", "metal": "mps"}[kind])
    settle = {"cpu": lambda: None, "cuda": torch.cuda.synchronize, "metal": torch.mps.synchronize}[kind]
    side, moved = SIDES[kind], MOVED[kind]
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        moved = max(1 << 20, min(moved, free // 8))
        side = SIDES[kind] if free > 32 * SIDES[kind] ** 2 else 1024
    left, right, out = (torch.ones(side, side, dtype=_type_of(kind), device=device) for _ in range(3))
    clock = time.thread_time if kind == "cpu" else time.perf_counter
    multiply = _pace(lambda: torch.mm(left, right, out=out), settle, clock)
    halves = _bfloat16_rate(side) if kind == "cpu" else 0.0
    if kind == "cpu":
        multiply = min(multiply, _pace_of_onednn(left, right))
    source = torch.ones(moved, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    move = _pace(lambda: target.copy_(source), settle, clock)
    return Rates(2 * side**3 / multiply, 2 * moved / move, halves)


def _pace_of_onednn(left: torch.Tensor, right: torch.Tensor) -> float:
    """Median seconds of a float32 product by oneDNN, the faster library on some processors; inf without it."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return math.inf
    try:
        return _pace(lambda: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], ""))
    except RuntimeError:
        return math.inf


def _bfloat16_rate(side: int) -> float:
    """Operations a second of a bfloat16 product of square matrices on the processor; 0.0 if it is wrong.

    Few rows are tried first: without such instructions, all would take a second.
    """
    import torch

    whole = torch.ones(side, side, dtype=torch.bfloat16)
    rate = 0.0
    for rows in (FEW, side):
        left = whole[:rows]
        if not bool((torch.mm(left, whole) == side).all()):
            return 0.0
        rate = 2 * rows * side * side / _pace(lambda left=left: torch.mm(left, whole))  # type: ignore[misc]
        if rate < EMULATED:
            break
    return rate


def _type_of(kind: str) -> torch.dtype:
    import torch

    if kind == "cpu":
        return torch.float32
    plain = kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if plain else torch.bfloat16


def _pace(
    work: Callable[[], object],
    settle: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.thread_time,
) -> float:
    work()
    settle()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < RUNS or time.perf_counter() < end:
        begun = clock()
        work()
        settle()
        taken.append(clock() - begun)
    return median(taken)


def main() -> None:
    """Measure the device that the arguments name, and print its rates."""
    kind, *core = sys.argv[1:]
    if core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core[0])})
    if kind == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # must be set before torch is loaded
    rates = measure(kind)
    print(json.dumps(asdict(rates)))


if __name__ == "__main__":
    main()
