"""Measures devices' rates once; the home keeps them by device, driver and torch.

In a child process: a failure gives a reason. ``python -P -m marlaas.engine.devices.calibration cpu CORE`` measures one
core, ``cuda`` the only visible card; prints JSON. Never run on cards.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil

from ..programs import run_module
from ..tables import add_to_table, read_table
from .limits import address_space
from .machine import Cpu, Gpu, Inventory, Machine, Rates
from .software import version_of
from .usable import environment

if TYPE_CHECKING:
    import torch


BUSY = 0.2
"""Share of the cores for others without a warning."""


class OtherPrograms:
    """Usage of ``cores`` (empty: all) by other programs, children excluded."""

    def __init__(self, cores: Collection[int] = ()) -> None:
        self._cores = cores or range(psutil.cpu_count() or 1)
        self._began = self._look()

    def used(self) -> float:
        (before, all_before, own_before), (now, everybody, own) = self._began, self._look()
        return max(0.0, (everybody - all_before - own + own_before) / max(1e-9, now - before))

    def warning(self) -> str:
        used, many = self.used(), len(self._cores)
        if used <= BUSY * many:
            return ""
        return f"This machine is busy: other programs use {used:.1f} of {many} {'core' if many == 1 else 'cores'}."

    def _look(self) -> tuple[float, float, float]:
        counted = psutil.cpu_times(percpu=True)
        ours = [counted[core] for core in self._cores]
        busy = sum(sum(times) - times.idle - getattr(times, "iowait", 0.0) for times in ours)
        process, own = psutil.Process(), 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                own += sum(one.cpu_times()[:4])  # user and system, also of ended children
        return time.monotonic(), busy, own


SECONDS = 60.0


def with_rates(
    found: Inventory, path: Path, *, missing: bool = False, anew: bool = False
) -> tuple[Inventory, list[str]]:
    """Rates from the file ``path``; ``missing`` measures the others, ``anew`` all (seconds each). Also notes on
    failures."""
    table = {key: _rates(value) for key, value in read_table(path).items()}
    known = {key: rates for key, rates in table.items() if rates is not None}
    notes: list[str] = []
    rates: dict[str, Rates] = {}
    devices: list[Cpu | Gpu] = [found.machine.cpu, *found.machine.gpus]
    for device in devices:
        key = key_of(device, found)
        if key in known and not anew:
            rates[key] = known[key]
        elif (missing or anew) and (isinstance(device, Cpu) or device.kind == "cuda"):
            measured = measure(device)
            if isinstance(measured, Rates):
                rates[key] = measured
            else:
                label = device.label if isinstance(device, Gpu) else "the processor"
                notes.append(f"The rates of {label} could not be measured: {measured}.")
    if rates.keys() - known.keys() or anew:
        add_to_table(path, {key: asdict(each) for key, each in rates.items()})
    return replace(found, machine=_rated(found, rates)), notes


def _rated(found: Inventory, rates: Mapping[str, Rates]) -> Machine:
    machine, key = found.machine, key_of(found.machine.cpu, found)
    if key in rates and address_space() is not None:
        rates = {**rates, key: replace(rates[key], bfloat16=0.0)}
    gpus = (replace(gpu, rates=rates.get(key_of(gpu, found))) for gpu in machine.gpus)
    return Machine(replace(machine.cpu, rates=rates.get(key)), tuple(gpus))


def key_of(device: Cpu | Gpu, found: Inventory) -> str:
    """Device, driver and torch."""
    who = f"{device.uuid} {device.name} driver {found.driver}" if isinstance(device, Gpu) else f"cpu {device.name}"
    return f"{who} torch {version_of('torch')}"


def measure(device: Cpu | Gpu) -> Rates | str:
    """A device's rates, or why there are none."""
    words = (device.kind,) if isinstance(device, Gpu) else ("cpu", *map(str, device.cores[-1:]))
    variables = os.environ | environment([device] if isinstance(device, Gpu) else ())
    out, failure = run_module("marlaas.engine.devices.calibration", *words, seconds=SECONDS, environment=variables)
    last = out.decode("utf-8", "replace").strip().rpartition("\n")[2]
    with contextlib.suppress(ValueError):
        if not failure and (rates := _rates(json.loads(last))):
            return rates
    return failure or last or "it said nothing"


def _rates(value: object) -> Rates | None:
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):  # what else a file may have
        numbers = [float(value[name]) for name in ("matrix", "bandwidth", "bfloat16")]  # type: ignore[index]
        rates = Rates(*numbers)
        if all(map(isfinite, numbers)) and min(numbers[:2]) > 0 and rates.bfloat16 >= 0:
            return rates
    return None


# Medians over short runs, in float32 and bfloat16; a core's of its processor time.

RUN_SECONDS = 0.4
RUNS = 5
SIDES = {"cpu": 1024, "cuda": 8192}
"""Rows of the square matrices."""
FEW = 32
EMULATED = 20e9
"""Bfloat16 operations a second of a core with instructions, at least."""
MOVED = {"cpu": 1 << 26, "cuda": 1 << 30}


def measure_here(kind: str) -> Rates:
    """Raises torch's errors."""
    import torch

    side, moved, dtype, halves = SIDES[kind], MOVED[kind], torch.float32, 0.0
    if kind == "cuda":
        free, _ = torch.cuda.mem_get_info()
        moved = max(1 << 20, min(moved, free // 8))
        side = side if free > 32 * side**2 else 1024
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    left, right, out = (torch.ones(side, side, dtype=dtype, device=kind) for _ in range(3))
    multiply = _pace(lambda: torch.mm(left, right, out=out), kind)
    if kind == "cpu":
        multiply = min(multiply, _pace_of_onednn(left, right))
        halves = _bfloat16_rate(side)
    source = torch.ones(moved, dtype=torch.uint8, device=kind)
    target = torch.empty_like(source)
    move = _pace(lambda: target.copy_(source), kind)
    return Rates(2 * side**3 / multiply, 2 * moved / move, halves)


def _pace_of_onednn(left: torch.Tensor, right: torch.Tensor) -> float:
    """Median seconds of oneDNN's float32 product, inf without it."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return math.inf
    try:
        return _pace(lambda: torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], ""))
    except RuntimeError:
        return math.inf


def _bfloat16_rate(side: int) -> float:
    """Operations a second; 0.0 if the product is wrong.

    Few rows come first: without instructions, all take a second.
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


def _pace(work: Callable[[], object], kind: str = "cpu") -> float:
    import torch

    clock = time.perf_counter if kind == "cuda" else time.thread_time

    def run() -> float:
        begun = clock()
        work()
        if kind == "cuda":
            torch.cuda.synchronize()
        return clock() - begun

    run()
    taken: list[float] = []
    end = time.perf_counter() + RUN_SECONDS
    while len(taken) < RUNS or time.perf_counter() < end:
        taken.append(run())
    return median(taken)


def main() -> None:
    """Measure the device in the arguments."""
    kind, *core = sys.argv[1:]
    if core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core[0])})
    if kind == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # must be set before torch is loaded
    rates = measure_here(kind)
    print(json.dumps(asdict(rates)))


if __name__ == "__main__":
    main()
