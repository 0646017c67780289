"""Divides the processor time of a simulation between the engine's real code, by package, and the simulation.

A timer samples the running code; a library counts for our calling code. This needs the main thread, and a system with
such a timer.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

EVERY = 0.002
OWN = "simulate"
LOOP = "loop"
PREFIX = "marlaas.engine."


@dataclass
class ProcessorTime:
    """Processor seconds, in all and by package."""

    seconds: float = 0.0
    looks: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    @property
    def real(self) -> float:
        """Seconds of the engine's real code; all seconds without a timer."""
        looks = self.looks.total()
        return self.seconds * (1 - self.looks[OWN] / looks) if looks else self.seconds

    def by_package(self) -> dict[str, float]:
        looks = self.looks.total()
        return {name: self.seconds * count / looks for name, count in self.looks.most_common()}

    def dearest(self, most: int = 12) -> dict[str, float]:
        looks = self.looks.total()
        return {name: self.seconds * count / looks for name, count in self.functions.most_common(most)}


@contextlib.contextmanager
def watched() -> Iterator[ProcessorTime]:
    """Count the processor time of the block; it is complete when the block ends."""
    found = ProcessorTime()

    def look(_number: int, frame: FrameType | None) -> None:
        package, function = _place(frame)
        found.looks[package] += 1
        if package not in (OWN, LOOP):
            found.functions[function] += 1

    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGPROF, look) if able else None
    began = time.process_time()
    if able:
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        yield found
    finally:
        if able:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)
        found.seconds = time.process_time() - began


def _place(frame: FrameType | None) -> tuple[str, str]:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PREFIX):
            package = module.removeprefix(PREFIX).partition(".")[0]
            return package, f"{module.removeprefix(PREFIX)}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return LOOP, ""
