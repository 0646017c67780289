"""The engine with other ways to bring new weights to the samplers: what doing that next to training is held against.

``MARLAAS_BENCH_SYNC`` names the way, ``MARLAAS_BENCH_DELAY`` the seconds that publishing takes longer. Nobody else
starts this.

    python -m benchmarks.machinery.sync_engine HOME
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from marlaas.engine.daemon.main import run
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.slots import SamplerEndpoint
from marlaas.engine.store.versions import Version
from marlaas.engine.train import canary
from marlaas.engine.train.admission import Background
from marlaas.engine.train.loop import PolicyLearner
from marlaas.engine.train.publishing import PublishedVersions
from marlaas.engine.trainer.advantages import ClosedGroup

WAY, DELAY = "MARLAAS_BENCH_SYNC", "MARLAAS_BENCH_DELAY"
OVERLAPPED, BLOCKING, UNCHECKED = "overlapped, as shipped", "blocking", "without a canary"
WAYS = (OVERLAPPED, BLOCKING, UNCHECKED)


def take(way: str, delay: float) -> None:
    """Let this process's engine publish in that way, ``delay`` seconds later."""
    if way == BLOCKING:
        _block()
    if way == UNCHECKED:
        canary.choose = _nothing
    if delay:
        _delay(delay)


def _block() -> None:
    """Nothing of the next step is trained before the version is served and checked; the wait counts as exposed."""
    make = PolicyLearner._step

    async def step(self: PolicyLearner, step: int, before: Version, background: Background) -> Version:
        version = await make(self, step, before, background)
        with self.groups.step_waits():
            await self.settled()
        return version

    PolicyLearner._step = step  # type: ignore[method-assign]


def _nothing(groups: Sequence[ClosedGroup], several: bool) -> canary.Windows:
    """There is nothing to compare."""
    return ()


def _delay(seconds: float) -> None:
    """Each sampler is asked to load a version so much later."""
    load = PublishedVersions._load_at

    async def later(self: PublishedVersions, endpoint: SamplerEndpoint, version: Version) -> None:
        await asyncio.sleep(seconds)
        await load(self, endpoint, version)

    PublishedVersions._load_at = later  # type: ignore[method-assign]


if __name__ == "__main__":
    take(os.environ.get(WAY, OVERLAPPED), float(os.environ.get(DELAY, "0")))
    sys.exit(run(Home(Path(sys.argv[1]))))
