"""Real workers of a home of their own, under this process: samplers, a trainer, environments and a store; no engine.

Kinds of samplers flow in, ``Workers`` flow out, on which whole tasks can be trained. All processes end with the block.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from marlaas.engine.base.model import load_base
from marlaas.engine.daemon.control import create_database
from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.fairness.line import Payer
from marlaas.engine.fleet.placement_plan import on_processor
from marlaas.engine.fleet.planned_processes import worker_specs
from marlaas.engine.fleet.routing.endpoints import SamplerEndpoints
from marlaas.engine.fleet.routing.router import Router
from marlaas.engine.fleet.services import Services, ServicesFactory
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.submission.taskfile import submission
from marlaas.engine.train.loop import TrainRun
from marlaas.engine.workers.handle import WorkerHandle

from .. import PLUGINS
from .cores import all_cores

MEMORY = 8 << 30
"""Bytes that the workers are planned with, more than they take."""
LOOK = 0.5
"""Seconds between two looks at what the samplers did, as the engine's pulse takes."""


@dataclass(frozen=True)
class Run:
    """Tasks that were trained at the same time."""

    makespan: float
    """Seconds from the beginning to the last step of the last."""
    steps: tuple[float, ...]
    """Mean seconds of a step, by task: all of its time divided by its steps."""
    turns: tuple[int, ...]
    """Turns that each sampler has sampled, in the order of the samplers."""
    read: int
    """Tokens that all samplers have read."""


@dataclass(frozen=True)
class Workers:
    """Live workers, and what they stand on."""

    home: Home
    services: Services
    endpoints: SamplerEndpoints
    ledger: Ledger

    def router(self) -> Router:
        """The engine's own, which knows what the samplers cost and no task."""
        return Router(tuple(self.endpoints.by_name.values()), self.endpoints.costs, self.ledger.mixes)

    async def train(self, specs: Sequence[TaskSpec], router: Router) -> Run:
        """Train tasks at the same time, each to its end."""
        services = replace(self.services, router=router)
        tasks = submit(self.home.database, [submission(spec) for spec in specs])
        before, read = dict(self.ledger.ended), await self._read()
        looking = asyncio.ensure_future(self._look())
        try:
            await asyncio.gather(*(self._one(services, *pair) for pair in zip(tasks, specs, strict=True)))
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        with Reader(self.home.database) as reader:
            began = {row.id: row.created for row in reader.tasks() if row.id in set(tasks)}
            ends = [reader.steps(task)[-1].created - began[task] for task in tasks]
        turns = (self.ledger.ended[name] - before.get(name, 0) for name in self.endpoints.by_name)
        lengths = tuple(end / spec.steps for end, spec in zip(ends, specs, strict=True))
        return Run(max(ends), lengths, tuple(turns), await self._read() - read)

    async def _one(self, services: Services, task: int, spec: TaskSpec) -> None:
        own = services.of(Payer(spec.tenant, task), spec.train.deterministic)
        await TrainRun(own, task, spec, lambda learner: None).run()

    async def _look(self) -> None:
        while True:
            await self.endpoints.stats(1.0)
            await asyncio.sleep(LOOK)

    async def _read(self) -> int:
        return sum(one.prefilled_tokens for one in (await self.endpoints.stats(10.0)).values())


@asynccontextmanager
async def workers(
    folder: Path, plugins: Sequence[str], kinds: Sequence[SamplerKind], sequences: int, context: int
) -> AsyncIterator[Workers]:
    """The shipped base with a sampler of each of ``kinds``, on the first two cores, and the trainer."""
    home = Home(folder)
    create_database(home)
    for plugin in plugins:
        shutil.copytree(PLUGINS / plugin, home.plugins / plugin, ignore=shutil.ignore_patterns("__pycache__"))
    base = load_base("tiny")
    rollout = RolloutSettings(samplers=tuple(kinds), sequences=sequences, context=context)
    settings = Settings(rollout=rollout)
    plan = on_processor(base, settings, MEMORY, all_cores()[:2])
    ledger, handles = Ledger(), dict[str, WorkerHandle]()
    environments = EnvironmentService([home.plugins], home.scratch)
    store = Store(home.database, "tiny", base.fingerprint)
    opening = ServicesFactory(
        home, settings, base, store, environments, ledger, str, asyncio.Event(), Renderer(base.path), lambda *_: None
    )
    try:
        for spec in worker_specs(base, home, settings, plan):
            handles[spec.name] = await spec.spawn(home.logs)
        await environments.start()
        services, endpoints = await opening.open(handles, plan)
        yield Workers(home, services, endpoints, ledger)
    finally:
        await environments.stop()
        await asyncio.gather(*(handle.stop() for handle in handles.values()))
        store.close()
