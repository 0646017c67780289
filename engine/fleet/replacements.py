"""Replaces workers that died while the others continue.

Users of a dead worker continue from their last commit, or with their next turn at another sampler with the same
version. If a successor cannot be started, and nobody else does the work, all workers restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from ..errors import MarlaasError, WorkerDied
from .placement_plan import PlacementPlan
from .planned_processes import sharing_assignment
from .processes import WorkerProcesses
from .routing.endpoints import SamplerEndpoints
from .services import Services, ServicesFactory
from .worker_specs import WorkerSpec

TRIES = 3
"""Tries at starting a successor; then it may be placed elsewhere, even if others do the work."""
RETRY = 2.0


@dataclass(frozen=True)
class Live:
    """The services and samplers of one incarnation of the workers."""

    services: Services
    endpoints: SamplerEndpoints


@dataclass(frozen=True)
class Planned:
    """The current plan and its worker of that name."""

    plan: Callable[[], PlacementPlan]
    spec: Callable[[str], WorkerSpec]
    elsewhere: Callable[[], Awaitable[bool]]
    """Moves all workers if a new plan names other devices; returns True if it does."""
    anew: Callable[[], None]


def replaceable(deaths: Collection[str], plan: PlacementPlan, trainers: Collection[str]) -> bool:
    """True if all others continue without these workers; ``trainers`` lived until now."""
    shared = sharing_assignment(plan)
    samplers = {own.name for own in plan.placement.samplers if own is not shared}
    training = set(deaths) - samplers
    return training <= {own.name for own in plan.placement.trainers} and (not training or set(trainers) > training)


class Replacements:
    """Starts successors."""

    def __init__(
        self,
        processes: WorkerProcesses,
        factory: ServicesFactory,
        planned: Planned,
        log: Callable[[str, str, str], None],
    ) -> None:
        self.deaths = 0
        self.returned = asyncio.Event()
        self._processes = processes
        self._factory = factory
        self._planned = planned
        self._log = log
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def note(self, deaths: int) -> None:
        self.deaths += deaths
        self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def noticed(self, since: int) -> None:
        """Wait until more than ``since`` deaths were noticed, and all deaths are handled."""
        while self.deaths <= since or any(handle.died.is_set() for handle in self._processes.handles.values()):
            await self._changed.wait()

    @property
    def starting(self) -> frozenset[str]:
        return frozenset(name for name, start in self._starts.items() if not start.done())

    async def change(self) -> None:
        await self._changed.wait()

    def replace(self, deaths: Mapping[str, WorkerDied], live: Live) -> None:
        for name in deaths:
            if name in live.endpoints.by_name:
                live.endpoints.lose(name)
            else:
                live.services.trainers.lose(name)
            self._processes.forget(name)
            if name in self._starts:
                self._starts[name].cancel()
            self._starts[name] = asyncio.ensure_future(self._start(name, live))
        self.note(len(deaths))

    async def stop(self) -> None:
        starts, self._starts = list(self._starts.values()), {}
        for start in starts:
            start.cancel()
        if starts:
            await asyncio.wait(starts)

    async def _start(self, name: str, live: Live) -> None:
        told, tries = "", 0
        while True:
            try:
                await self._processes.start_again(self._planned.spec(name))
                await self._take_in(name, live)
                break
            except (MarlaasError, ValueError, OSError) as error:
                if told != (told := str(error)):
                    self._log("worker", f"Worker {name} cannot be started: {told}", "error")
            if name in self._processes.handles:
                self._processes.forget(name)
                self.wake()
            tries += 1
            if (tries >= TRIES or not _others(name, live)) and await self._planned.elsewhere():
                return
            if tries >= TRIES and not _others(name, live):
                self._planned.anew()
                return
            await asyncio.sleep(RETRY)
        self.returned.set()
        self.wake()

    async def _take_in(self, name: str, live: Live) -> None:
        handles, plan, services = self._processes.handles, self._planned.plan(), live.services
        if name not in live.endpoints.by_name:
            services.trainers.take_in(self._factory.trainer(handles, plan, name, services.trainers.clock))
            return
        endpoint = await self._factory.endpoint(handles, plan, name, live.endpoints.clock)
        live.endpoints.take_in(endpoint)
        services.router.take_in(endpoint)


def _others(name: str, live: Live) -> bool:
    return live.endpoints.alive if name in live.endpoints.by_name else bool(live.services.trainers.trainers)
