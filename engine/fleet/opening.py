"""From live workers to ``Services``: stations over samplers, the trainer that all share, the router between them.

Handles and the staffing that they were started for flow in; the services of one incarnation flow out. Starts and ends
no process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ..base.model import BaseModel
from ..environments.baselines import Floors
from ..environments.service import EnvironmentService
from ..fairness.clock import SharedClock
from ..fairness.ledger import Ledger
from ..fairness.line import NOBODY, Line
from ..home.paths import Home
from ..home.settings import Settings
from ..rollout.endpoint import Station
from ..rollout.episodes import Rollout
from ..rollout.renderer import Renderer
from ..store.store import Store
from ..training.protocol import Trainer
from .agreement import compare, comparison_tokens
from .assignment import Handles, sampler_at, trainer_at
from .placement_plan import Staffing
from .routing.endpoints import Stations, open_station, precision
from .routing.router import Router
from .services import Services
from .tolerance import Tolerance
from .trainer import SharedTrainer, TaskTrainer


@dataclass(frozen=True)
class Opening:
    """All that services are made of beside workers: it stays when these die."""

    home: Home
    settings: Settings
    base: BaseModel
    store: Store
    environments: EnvironmentService
    ledger: Ledger
    shortage: Callable[[], str]
    draining: asyncio.Event
    renderer: Renderer
    log: Callable[[str, str, str], None]
    floors: Floors = field(default_factory=Floors)

    async def open(self, handles: Handles, staff: Staffing) -> tuple[Services, Stations]:
        """Ask the workers what they can do, and make services of them. Raises what they raise, and ``BaseModelError``
        where a sampler has another base than the trainer."""
        trainer = trainer_at(handles, staff)
        stations = await self._stations(handles, staff, trainer)
        shared = SharedTrainer(trainer, Line(self._weight), self.ledger, self.settings.training.fuse)
        services = Services(
            home=self.home,
            store=self.store,
            environments=self.environments,
            rollout=Rollout(self.renderer, self.ledger),
            stations=stations.by_name,
            router=Router(tuple(stations.by_name.values()), stations.costs, self.ledger.mixes),
            shared=shared,
            trainer=TaskTrainer(shared, NOBODY, alone=True),
            tolerances=stations.tolerances,
            floors=self.floors,
            shortage=self.shortage,
            token_steps=self.settings.disk.token_steps,
            draining=self.draining,
        )
        return services, stations

    async def _stations(self, handles: Handles, staff: Staffing, trainer: Trainer) -> Stations:
        stations: list[Station] = []
        clock: SharedClock[str] = SharedClock()
        tolerances = {}
        for post, plan in zip(staff.placement.samplers, staff.memory, strict=True):
            sampler = sampler_at(handles, staff, post)
            stored, tolerance = precision(self.base, self.settings, post, plan, staff.placement.trainer)
            limits = await sampler.limits()
            if limits.note:
                self.log("worker", limits.note, "warning")
            stations.append(open_station(sampler, limits, post, stored, Line(self._weight, clock), staff.machine))
            tolerances[post.name] = tolerance
            if self.settings.rollout.gguf and post.kind == "llama.cpp":
                await self._compare(stations[-1], trainer, tolerance)
        return Stations(stations, tolerances, self.base)

    async def _compare(self, station: Station, trainer: Trainer, tolerance: Tolerance) -> None:
        """Raise ``BaseModelError`` if a file that a person brought holds another base than the trainer's."""
        tokens = comparison_tokens(self.renderer, station.context)
        agreement = await compare(station.sampler, trainer, tokens, self.home.scratch)
        agreement.check(tolerance, f"The file {self.settings.rollout.gguf}")

    def _weight(self, tenant: str) -> float:
        return self.store.tenants.get(tenant).weight
