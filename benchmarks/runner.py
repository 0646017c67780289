"""The inside of a benchmark's own process: the name of a module flows in, its section and the machine flow out.

Whoever ends the command, or this process, lets the benchmark end what it has started: engines above all, which would
otherwise live on.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

from marlaas.engine.workers.host import PR_SET_PDEATHSIG

from .figures import Section
from .machine import Machine, describe


def measure(name: str, quick: bool) -> tuple[Section, Machine]:
    """Look at the machine, then measure."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        module = importlib.import_module(f"benchmarks.{name}")
        machine = describe()
        section: Section = module.measure(quick)
    except SystemExit as end:
        os._exit(int(end.code or 0))  # nobody waits for an answer: the pool's process would, for ever
    return section, machine
