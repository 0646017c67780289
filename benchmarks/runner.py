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

from marlaas.engine.workers.host import PR_SET_PDEATHSIG

from .report.figures import Section
from .report.machine import Machine, describe
from .report.noise import MOST

MODULES = {
    "concurrency": "many_tasks.concurrency",
    "compute_mix": "many_tasks.compute_mix",
    "scaling": "many_tasks.scaling",
    "eight_trl": "beside_trl.eight_tasks",
    "staleness": "many_tasks.staleness",
    "quality": "many_tasks.quality",
    "quantised": "many_tasks.quantised",
    "trajectories": "many_tasks.trajectories",
    "weight_sync": "many_tasks.weight_sync",
    "canary": "many_tasks.canary",
    "credit": "many_tasks.credit",
    "fairness": "many_tasks.fairness",
    "real": "real.section",
    "one_task": "beside_trl.one_task",
    "large_vocabulary": "beside_trl.large_vocabulary",
    "half_billion_step": "beside_trl.half_billion_step",
    "half_billion": "large_base.half_billion",
    "long_sequences": "large_base.long_sequences",
    "adapters": "large_base.adapters",
    "tenants": "trainer.tenants",
    "fusing": "trainer.fusing",
    "trainer": "trainer.step",
    "sampler": "sampler.throughput",
    "shared_prefix": "sampler.shared_prefix",
    "routing": "sampler.routing",
    "agents": "sampler.agents",
    "engine": "engine.costs",
    "environments": "engine.environments",
    "rewards": "engine.rewards",
    "scoring_nodes": "engine.scoring_nodes",
    "startup": "engine.startup",
    "memory": "engine.memory",
    "terminal": "terminal.application",
    "big_home": "terminal.big_home",
    "gateway": "gateway.throughput",
    "simulator": "simulation.validation",
    "simulator_nodes": "simulation.over_nodes",
    "simulated_scale": "simulation.scale",
    "gpu": "large_base.card",
}
"""Each benchmark and its module, which has ``measure(quick: bool) -> Section``; in the order of the page."""


def measure(name: str, quick: bool) -> tuple[Section, Machine]:
    """Look at the machine, then measure."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every program that is started compiles its modules anew
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        module = importlib.import_module(f"benchmarks.{MODULES[name]}")
        machine = describe(quiet=1.0 if quick else MOST)
        section: Section = module.measure(quick)
    except SystemExit as end:
        os._exit(int(end.code or 0))  # nobody waits for an answer: the pool's process would, for ever
    return section, machine
