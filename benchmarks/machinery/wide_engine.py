"""The engine with every core for both workers: what runs one task after another synchronously would do with them.

The program itself gives each worker cores of its own, since pools that share a core spin against each other. Where only
one stage works at a time that would be a weak baseline; nobody else starts this.

    python -m benchmarks.machinery.wide_engine HOME
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from marlaas.engine.daemon.main import run
from marlaas.engine.devices.machine import Place, Placement, SamplerKind
from marlaas.engine.fleet.placement import processor, sharing
from marlaas.engine.fleet.placement.processor import on_cores
from marlaas.engine.home.paths import Home


def wide(kinds: Sequence[SamplerKind], cores: Sequence[int]) -> Placement:
    """Everybody at the same place: all cores."""
    usual, everywhere = on_cores(kinds, cores), Place(tuple(cores))
    samplers = tuple(replace(assignment, place=everywhere) for assignment in usual.samplers)
    return Placement(samplers, replace(usual.trainer, place=everywhere), ("Each worker has all cores.",))


def both_on_all_cores() -> None:
    """Let this process's engine give all cores to each worker: to one sampler, and to one trainer."""
    processor.on_cores = wide
    sharing.with_trainers = lambda placement, asked, small, policies: placement


if __name__ == "__main__":
    both_on_all_cores()
    sys.exit(run(Home(Path(sys.argv[1]))))
