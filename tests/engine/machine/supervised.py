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

from marlaas.engine.devices.machine import Sharing
from marlaas.engine.devices.usable import Ours
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from marlaas.engine.machine.plan import PlacementPlan, on_processor
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.models.find import load_base
from marlaas.engine.store.store import Store

BASE = load_base("tiny")


def plan_on(settings: Settings, *cores: int) -> PlacementPlan:
    return on_processor(BASE, settings, 8 << 30, cores)


class Supervised(WorkerSupervisor):
    """It is placed again by ``again``."""

    def __init__(self, root: Path, settings: Settings, plan: PlacementPlan) -> None:
        home, nobody = Home(root).create(), SimpleNamespace(processes=lambda: [])
        environments: Any = nobody
        self.again, self.told = plan, list[str]()
        common = (home, settings, BASE, plan, Store(home.database, "tiny"), environments, Ledger(), str)
        super().__init__(*common, lambda kind, message, level: self.told.append(f"{kind}: {message}"), self.planned)

    def planned(self, failed: tuple[Sharing, ...], ours: Ours) -> PlacementPlan:
        self.failed, self.ours_seen = failed, ours
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
