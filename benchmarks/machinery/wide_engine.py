"""The engine with every core for both workers: what runs one task after another synchronously would do with them.

The program itself gives each worker cores of its own, since pools that share a core spin against each other. Where only
one stage works at a time that would be a weak baseline; nobody else starts this.

    python -m benchmarks.machinery.wide_engine HOME
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from marlaas.engine.daemon.main import run
from marlaas.engine.devices.machine import Place
from marlaas.engine.home.paths import Home
from marlaas.engine.machine import plan
from marlaas.engine.machine.placement import place


def wide(cores: Sequence[int], samplers: int = 1) -> tuple[list[Place], Place]:
    """Everybody at the same place: all cores."""
    everywhere = Place(tuple(cores))
    return [everywhere] * samplers, everywhere


def both_on_all_cores() -> None:
    """Let this process's engine give all cores to each worker: to one sampler, and to one trainer."""
    vars(place)["halves"] = wide
    vars(plan)["with_trainers"] = lambda placement, asked, small, policies: placement


if __name__ == "__main__":
    both_on_all_cores()
    sys.exit(run(Home(Path(sys.argv[1]))))
