"""Real workers of their own home, under this process: samplers, a trainer, environments, a store; no engine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.daemon.control import create_database
from marlaas.engine.devices.machine import Cpu, Machine, SamplerKind, Software
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine.plan import on_machine, worker_specs
from marlaas.engine.machine.routing.router import Router, SamplerEndpoints
from marlaas.engine.machine.services import Services, ServicesFactory
from marlaas.engine.machine.workers.handle import WorkerHandle
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.store.store import Store

from .. import PLUGINS
from .cores import all_cores

MEMORY = 8 << 30
"""Bytes that the workers are planned with, more than they take."""


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
    usable = UsableResources(Machine(Cpu(all_cores()[:2], 2, MEMORY)))
    plan = on_machine(base, settings, MEMORY, usable, Software())
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
