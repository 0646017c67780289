"""The inside of a benchmark's own process: the name of a module flows in, its section and the machine flow out."""

from __future__ import annotations

import importlib
import signal
import sys

from .figures import Section
from .machine import Machine, describe


def measure(name: str, quick: bool) -> tuple[Section, Machine]:
    """Look at the machine, then measure. Whoever ends this process lets the benchmark end what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    module = importlib.import_module(f"benchmarks.{name}")
    machine = describe()
    section: Section = module.measure(quick)
    return section, machine
