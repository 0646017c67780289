"""A supervisor with real workers of the shipped base, whose messages are kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marlaas.engine.devices.machine import Cpu, Machine, Software
from marlaas.engine.devices.usable import Ours, UsableResources
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from marlaas.engine.machine.plan import PlacementPlan, on_machine
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.models.find import load_base
from marlaas.engine.store.store import Store

BASE = load_base("tiny")


def plan_on(settings: Settings, *cores: int, free: int = 8 << 30) -> PlacementPlan:
    """Of these cores only; empty: none can be pinned."""
    usable = UsableResources(Machine(Cpu(cores, max(1, len(cores)), free)))
    return on_machine(BASE, settings, free, usable, Software())


class Supervised(WorkerSupervisor):
    """It is placed again by ``again``."""

    def __init__(self, root: Path, settings: Settings, plan: PlacementPlan) -> None:
        home, nobody = Home(root).create(), SimpleNamespace(processes=lambda: [])
        environments: Any = nobody
        self.again, self.told = plan, list[str]()
        common = (home, settings, BASE, plan, Store(home.database, "tiny"), environments, Ledger(), str)
        super().__init__(*common, lambda kind, message, level: self.told.append(f"{kind}: {message}"), self.planned)

    def planned(self, ours: Ours) -> PlacementPlan:
        self.ours_seen = ours
        return self.again

    def kill(self, name: str) -> None:
        os.kill(dict(self.processes())[name], signal.SIGKILL)

    async def close(self) -> None:
        await self.stop()
        self.store.close()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Workers are started, and kept alive."""
        await self.start()
        task = asyncio.ensure_future(self.run())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
