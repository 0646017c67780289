"""The inside of a benchmark's own process: the name of a benchmark flows in, its section and the machine flow out.

Whoever ends the command, or this process, lets the benchmark end what it has started: engines above all, which would
otherwise live on.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

from marlaas.engine.machine.workers.host import PR_SET_PDEATHSIG

from .report.figures import Section
from .report.machine import Machine, describe
from .report.pages import MOST

MODULES = {
    "concurrency": "many_tasks.concurrency",
    "compute_mix": "many_tasks.concurrency:measure_mix",
    "scaling": "many_tasks.scaling",
    "eight_trl": "beside_trl.eight_tasks",
    "staleness": "many_tasks.staleness",
    "quality": "many_tasks.quality",
    "trajectories": "many_tasks.trajectories",
    "weight_sync": "many_tasks.weight_sync",
    "real": "real.section",
    "one_task": "beside_trl.one_task",
    "shown": "beside_trl.shown",
    "half_billion_step": "beside_trl.random_bases",
    "terminal": "terminal",
    "gateway": "gateway",
    "simulator": "simulator",
}
"""Each benchmark and its module, with ``measure(quick: bool) -> Section`` or the function that is named; in the order
of the page."""


def measure(name: str, quick: bool) -> tuple[Section, Machine]:
    """Look at the machine, then measure."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every program that is started compiles its modules again
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        module, _, function = MODULES[name].partition(":")
        measuring = getattr(importlib.import_module(f"benchmarks.{module}"), function or "measure")
        machine = describe(quiet=1.0 if quick else MOST)
        section: Section = measuring(quick)
    except SystemExit as end:
        os._exit(int(end.code or 0))  # nobody waits for an answer: the pool's process would, for ever
    return section, machine
