"""How often workers are looked at: each second, but more seldom where there are so many that it would hold the engine
up."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import cast

import pytest

from marlaas.engine.daemon.heartbeat import LOOKED_AT, Heartbeat, Seen
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.machine.services import Load
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.samplers.protocol import SamplerStats
from marlaas.engine.simulate.time import run_virtually
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store

SECONDS = 60


class Environments:
    """None."""

    def infos(self) -> tuple[()]:
        return ()


class BusySamplers:
    """So many samplers, which are busy all the time."""

    def __init__(self, count: int) -> None:
        self.devices = {
            "rollout" if not number else f"rollout-{number + 1}": f"gpu {number}" for number in range(count)
        }
        self.environments = Environments()
        self.draining = asyncio.Event()
        self.settling = False
        self.starting: frozenset[str] = frozenset()
        self.asked: list[float] = []
        """When each sampler was asked."""

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        now = asyncio.get_running_loop().time()
        self.asked += [now] * len(self.devices)
        return {name: SamplerStats(0, 0, now, 0, 0) for name in self.devices}

    def processes(self) -> list[tuple[str, int]]:
        return [(name, number) for number, name in enumerate(self.devices)]

    def loads(self) -> dict[str, Load]:
        return {name: Load() for name in self.devices}

    def standings(self) -> dict[str, list[object]]:
        return {}


def beaten(store: Store, count: int) -> BusySamplers:
    """The samplers, after a minute of heartbeats."""

    async def minute() -> BusySamplers:
        samplers = BusySamplers(count)
        heartbeat = Heartbeat(
            store,
            Ledger(),
            OutcomeCounts(),
            lambda: None,
            look=lambda processes: [Seen(name, pid, 0, 0.0, 0.0) for name, pid in processes],
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                await heartbeat.run(cast(WorkerSupervisor, samplers))
        return samplers

    return run_virtually(minute)


@pytest.mark.parametrize("count", [1, LOOKED_AT, LOOKED_AT + 1, 191, 300, 3 * LOOKED_AT, 1000])
def test_a_bounded_number_of_workers_is_looked_at_each_second(tmp_path: Path, count: int) -> None:
    store = Store(tmp_path / "marlaas.db", "tiny")
    try:
        asked = beaten(store, count).asked
        looks = len(set(asked))
        assert looks == (SECONDS - 1) // max(1, -(-count // LOOKED_AT))
        assert len(asked) <= LOOKED_AT * SECONDS
        with Reader(tmp_path / "marlaas.db") as reader:
            samples = reader.all(
                "SELECT wall, busy FROM stages WHERE device = 'gpu 0' AND stage = 'rollout' ORDER BY id"
            )
            workers = reader.all("SELECT busy FROM workers")
        assert len(samples) == looks
        assert all(sample["busy"] == pytest.approx(sample["wall"]) for sample in samples)  # busy all the time
        assert [worker["busy"] for worker in workers] == pytest.approx([1.0] * count)
    finally:
        store.close()
