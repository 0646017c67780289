"""One task of several policies on real workers, a real environment and a store, with whatever slots it is given.

Workers are started once for all runs; a ``Scene`` flows in, the seconds of each policy's steps flow out, with how long
turns waited for a slot. Knows nothing of what is compared with what.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, time
from types import MappingProxyType
from typing import Any, cast

from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.fairness.ledger import TRAINING, Ledger
from marlaas.engine.fairness.line import Line, Payer
from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.fleet.routing.endpoints import SamplerEndpoints
from marlaas.engine.fleet.routing.router import Router
from marlaas.engine.fleet.services import Services
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.protocol import Sampler
from marlaas.engine.rollout.slots import SamplerEndpoint, SamplerSlots, SlotHolder
from marlaas.engine.spec.agents import agent_map_of
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit
from marlaas.engine.submission.taskfile import submission
from marlaas.engine.train.loop import NOTHING, TrainRun, Without

from ..machinery.workers import workers

LOOK = 0.5
"""Seconds between two looks at what the samplers did, as the engine's pulse takes."""


@dataclass(frozen=True)
class Part:
    """Slots of one sampler that are kept for somebody."""

    sampler: str
    slots: int


@dataclass(frozen=True)
class Scene:
    """How a task is played: by the engine's own routes and slots, or with what a policy has to itself."""

    kept: Mapping[str, Part] | None = None
    """By policy; None: all slots are for all, and routes are the router's."""
    without: Without = NOTHING
    """What of the engine is left out."""
    late: Mapping[str, float] = field(default_factory=dict)
    """By policy, seconds by which each of its versions is served later, as over a slow link."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to, by policy."""

    step: Mapping[str, float]
    """Seconds from one step to the next, once the first few are made."""
    wait: Mapping[str, float]
    """Mean seconds that a turn waited for its slot."""
    routes: Mapping[str, Sequence[Share]]
    """In the end; nothing where they were fixed."""
    sampling: float = 0.0
    """Share of the time in which the samplers computed."""
    training: float = 0.0
    """The same of the trainer."""
    last: Mapping[str, float] = field(default_factory=dict)
    """Seconds from the beginning to the last step."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the last versions."""


class WatchedSlots(SamplerSlots):
    """Slots that note how long each policy's turns wait."""

    def __init__(self, count: int, waits: Mapping[str, list[float]]) -> None:
        super().__init__(count, Line())
        self._waits = waits

    async def take(self, holder: SlotHolder) -> None:
        """See ``SamplerSlots``."""
        began = monotonic()
        await super().take(holder)
        self._waits[holder.payer.policy].append(monotonic() - began)


class WatchedRouter(Router):
    """The engine's own, which notes its last answer for each policy."""

    def __init__(self, endpoints: Sequence[SamplerEndpoint], known: SamplerEndpoints, ledger: Ledger) -> None:
        super().__init__(endpoints, known.costs, ledger.mixes)
        self.last: dict[str, tuple[Share, ...]] = {}

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        self.last[policy] = super().shares(task, policy)
        return self.last[policy]


class FixedRouter(WatchedRouter):
    """Each policy at an endpoint of its own, for ever: what the engine never does."""

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        return (Share(policy, 1.0),)


class LateSampler:
    """A sampler that loads some policies' versions late; all else is the real one's."""

    def __init__(self, sampler: Sampler, late: Mapping[str, float]) -> None:
        self._sampler = sampler
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    async def load(self, name: str, path: str) -> str:
        """See ``Sampler``; ``name`` is that of a version, such as task-1/judge-v3-i1."""
        policy, _, number = name.rpartition("/")[2].partition("-v")
        if number and not number.startswith("0-"):
            await asyncio.sleep(self._late.get(policy, 0.0))
        return await self._sampler.load(name, path)


class Stage:
    """Workers, an environment and a store; made by ``stage``."""

    def __init__(self, home: Home, slots: int, services: Services, endpoints: SamplerEndpoints, ledger: Ledger) -> None:
        self._home = home
        self._slots = slots
        self._services = services
        self._endpoints = endpoints
        self._ledger = ledger

    async def run(self, spec: TaskSpec, scene: Scene, settled: int) -> Outcome:
        """Train a task to its end; steps count from the ``settled``-th on."""
        waits: defaultdict[str, list[float]] = defaultdict(list)
        router, services = self._services_of(scene, waits)
        (task,) = submit(self._home.database, [submission(spec)])
        own = services.of(Payer(spec.tenant, task), spec.train.deterministic)
        looking = asyncio.ensure_future(self._look())
        began, busy = time(), await self._busy()
        try:
            await TrainRun(own, task, spec, lambda learner: None, scene.without).run()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        wall, sampled = time() - began, await self._busy()
        trained = agent_map_of(spec).trained
        with Reader(self._home.database) as reader:
            made = {policy: [step.created for step in reader.steps(task, policy=policy)] for policy in trained}
            versions = sorted(reader.versions(task), key=lambda version: version.number)
        return Outcome(
            step={policy: (times[-1] - times[settled - 1]) / (len(times) - settled) for policy, times in made.items()},
            wait={policy: sum(found) / len(found) for policy, found in waits.items()},
            routes=router.last,
            sampling=(sampled[0] - busy[0]) / wall / len(self._services.endpoints),
            training=(sampled[1] - busy[1]) / wall,
            last={policy: times[-1] - began for policy, times in made.items()},
            adapters={version.policy: version.checksum for version in versions},
        )

    async def _busy(self) -> tuple[float, float]:
        """Seconds for which samplers and trainer have computed."""
        stats = await self._endpoints.stats(10.0)
        return sum(one.busy_seconds for one in stats.values()), self._ledger.busy[TRAINING]

    def _services_of(self, scene: Scene, waits: Mapping[str, list[float]]) -> tuple[WatchedRouter, Services]:
        services = self._services
        if scene.kept is None:
            late = scene.late
            endpoints = {name: self._endpoint(name, name, self._slots, waits, late) for name in services.endpoints}
            router = WatchedRouter(tuple(endpoints.values()), self._endpoints, self._ledger)
            return router, replace(services, endpoints=endpoints, router=router)
        endpoints = {policy: self._endpoint(policy, p.sampler, p.slots, waits) for policy, p in scene.kept.items()}
        router = FixedRouter(tuple(endpoints.values()), self._endpoints, self._ledger)
        tolerances = {policy: services.tolerances[part.sampler] for policy, part in scene.kept.items()}
        return router, replace(services, endpoints=endpoints, router=router, tolerances=tolerances)

    def _endpoint(
        self,
        name: str,
        sampler: str,
        slots: int,
        waits: Mapping[str, list[float]],
        late: Mapping[str, float] = MappingProxyType({}),
    ) -> SamplerEndpoint:
        """An endpoint over a sampler, be it one of several."""
        found = self._services.endpoints[sampler]
        own = cast(Sampler, LateSampler(found.sampler, late)) if late else found.sampler
        return replace(found, name=name, slots=WatchedSlots(slots, waits), sampler=own)

    async def _look(self) -> None:
        while True:
            await self._endpoints.stats(1.0)
            await asyncio.sleep(LOOK)


@asynccontextmanager
async def stage(
    folder: Path, plugin: str, kinds: Sequence[SamplerKind], slots: int, context: int
) -> AsyncIterator[Stage]:
    """One with a sampler of each of ``kinds``, each with so many ``slots``; all processes end with the block."""
    async with workers(folder, [plugin], kinds, slots, context) as made:
        yield Stage(made.home, slots, made.services, made.endpoints, made.ledger)
