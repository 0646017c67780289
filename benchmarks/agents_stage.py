"""One task of several policies on real workers, a real environment and a store, with whatever seats it is given.

Workers are started once for all runs; a ``Scene`` flows in, the seconds of each policy's steps flow out, with how long
turns waited for a seat. Knows nothing of what is compared with what.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from marlaas.engine.base.model import load_base
from marlaas.engine.daemon.control import create_database
from marlaas.engine.devices.plan import SamplerKind
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.fairness.line import Line, Payer
from marlaas.engine.fleet.assignment import worker_specs
from marlaas.engine.fleet.opening import Opening
from marlaas.engine.fleet.placement_plan import staffing
from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.fleet.routing.endpoints import Stations
from marlaas.engine.fleet.routing.router import Router
from marlaas.engine.fleet.services import Services
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.rollout.endpoint import Station
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import Guest, Seats
from marlaas.engine.run.learner import Learner
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.submission.taskfile import submission
from marlaas.engine.workers.handle import WorkerHandle

from .pinning import all_cores

PLUGINS = Path(__file__).resolve().parent / "plugins"
MEMORY = 8 << 30
"""Bytes that the workers are planned with, more than they take."""
LOOK = 0.5
"""Seconds between two looks at what the samplers did, as the engine's pulse takes."""


@dataclass(frozen=True)
class Part:
    """Seats of one sampler that are kept for somebody."""

    sampler: str
    seats: int


@dataclass(frozen=True)
class Scene:
    """How a task is played: by the engine's own routes and seats, or with what a policy has to itself."""

    kept: Mapping[str, Part] | None = None
    """By policy; None: all seats are for all, and routes are the router's."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to, by policy."""

    step: Mapping[str, float]
    """Seconds from one step to the next, once the first few are made."""
    wait: Mapping[str, float]
    """Mean seconds that a turn waited for its seat."""
    routes: Mapping[str, Sequence[Share]]
    """In the end; nothing where they were fixed."""


class WatchedSeats(Seats):
    """Seats that note how long each policy's turns wait."""

    def __init__(self, count: int, waits: Mapping[str, list[float]]) -> None:
        super().__init__(count, Line())
        self._waits = waits

    async def take(self, guest: Guest) -> None:
        """See ``Seats``."""
        began = monotonic()
        await super().take(guest)
        self._waits[guest.payer.policy].append(monotonic() - began)


class WatchedRouter(Router):
    """The engine's own, which notes its last answer for each policy."""

    def __init__(self, stations: Sequence[Station], known: Stations, ledger: Ledger) -> None:
        super().__init__(stations, known.costs, ledger.mixes)
        self.last: dict[str, tuple[Share, ...]] = {}

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        self.last[policy] = super().shares(task, policy)
        return self.last[policy]


class FixedRouter(WatchedRouter):
    """Each policy at a station of its own, for ever: what the engine never does."""

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """See ``Router``."""
        return (Share(policy, 1.0),)


class Stage:
    """Workers, an environment and a store; made by ``stage``."""

    def __init__(self, home: Home, seats: int, services: Services, stations: Stations, ledger: Ledger) -> None:
        self._home = home
        self._seats = seats
        self._services = services
        self._stations = stations
        self._ledger = ledger

    async def run(self, spec: TaskSpec, scene: Scene, settled: int) -> Outcome:
        """Train a task to its end; steps count from the ``settled``-th on."""
        waits: defaultdict[str, list[float]] = defaultdict(list)
        router, services = self._services_of(scene, waits)
        (task,) = submit(self._home.database, [submission(spec)])
        own = services.of(Payer(spec.tenant, task), spec.train.deterministic)
        looking = asyncio.ensure_future(self._look())
        try:
            await Learner(own, task, spec, lambda learner: None).run()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        with Reader(self._home.database) as reader:
            made = {policy: [step.created for step in reader.steps(task, policy=policy)] for policy in spec.policies}
        step = {policy: (times[-1] - times[settled - 1]) / (len(times) - settled) for policy, times in made.items()}
        return Outcome(step, {policy: sum(found) / len(found) for policy, found in waits.items()}, router.last)

    def _services_of(self, scene: Scene, waits: Mapping[str, list[float]]) -> tuple[WatchedRouter, Services]:
        services = self._services
        if scene.kept is None:
            stations = {name: self._station(name, name, self._seats, waits) for name in services.stations}
            router = WatchedRouter(tuple(stations.values()), self._stations, self._ledger)
            return router, replace(services, stations=stations, router=router)
        stations = {policy: self._station(policy, p.sampler, p.seats, waits) for policy, p in scene.kept.items()}
        router = FixedRouter(tuple(stations.values()), self._stations, self._ledger)
        tolerances = {policy: services.tolerances[part.sampler] for policy, part in scene.kept.items()}
        return router, replace(services, stations=stations, router=router, tolerances=tolerances)

    def _station(self, name: str, sampler: str, seats: int, waits: Mapping[str, list[float]]) -> Station:
        """A station over a sampler, be it one of several."""
        return replace(self._services.stations[sampler], name=name, seats=WatchedSeats(seats, waits))

    async def _look(self) -> None:
        while True:
            await self._stations.stats(1.0)
            await asyncio.sleep(LOOK)


@asynccontextmanager
async def stage(
    folder: Path, plugin: str, kinds: Sequence[SamplerKind], seats: int, context: int
) -> AsyncIterator[Stage]:
    """One with a sampler of each of ``kinds``, each with so many ``seats``; all processes end with the block."""
    home = Home(folder)
    create_database(home)
    shutil.copytree(PLUGINS / plugin, home.plugins / plugin, ignore=shutil.ignore_patterns("__pycache__"))
    base = load_base("tiny")
    settings = Settings(rollout=RolloutSettings(samplers=tuple(kinds), sequences=seats, context=context))
    staff = staffing(base, settings, MEMORY, all_cores()[:2])
    ledger, handles = Ledger(), dict[str, WorkerHandle]()
    environments = EnvironmentService([home.plugins], home.scratch)
    store = Store(home.database, "tiny", base.fingerprint)
    opening = Opening(
        home, settings, base, store, environments, ledger, str, asyncio.Event(), Renderer(base.path), lambda *_: None
    )
    try:
        for spec in worker_specs(base, home, settings, staff):
            handles[spec.name] = await spec.spawn(home.logs)
        await environments.start()
        services, stations = await opening.open(handles, staff)
        yield Stage(home, seats, services, stations, ledger)
    finally:
        await environments.stop()
        await asyncio.gather(*(handle.stop() for handle in handles.values()))
        store.close()
