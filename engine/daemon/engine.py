"""An engine: its parts, their connections, their start and end.

It serves until a *stop* or *drain* command, Ctrl-C or SIGTERM. ``main`` prepares it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Set

from ..base import UNVERIFIED, BaseModel
from ..devices import available_memory
from ..environments import EnvironmentEvent, EnvironmentService, Interpreters
from ..errors import StoreError
from ..fairness import Ledger
from ..fleet import (
    PlacementPlan,
    WorkerSupervisor,
    YieldLoop,
    compare_once,
    compared_before,
    precision_words,
    spoken_comparison,
)
from ..gateway import FigureReader, Serving, open_api
from ..home import BUNDLED_PLUGINS, DiskGuard, Home, Settings
from ..racing import until_first
from ..scheduler import Scheduler
from ..store import Store
from .cards import CardMonitor
from .conformance import background
from .heartbeat import Heartbeat
from .notifier import Notifier
from .planning import Planner, Rebalancing, cluster_of, elsewhere
from .saying import describe, in_words, names_of, say
from .starting import start_up


class Engine:
    """The parts of the engine of one home. Make it within a running event loop."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        base: BaseModel,
        placement_plan: PlacementPlan,
        store: Store,
        keep: Callable[[], None],
    ) -> None:
        self._home, self._settings, self._base, self._store = home, settings, base, store
        self._serves = False
        self._compares = ""
        self._environments = EnvironmentService(
            [BUNDLED_PLUGINS, home.plugins],
            home.scratch,
            self._on_environment,
            needed=self._played,
            interpreters=Interpreters(home.venvs, settings.environments, settings.resources.nice),
            earlier=store.failing.all(),
        )
        ledger, log = Ledger(), self._log
        self._disk = DiskGuard(home, settings.disk, log)
        self._api = open_api(store, settings.api, home, log)
        cluster = cluster_of(home, settings, base)
        self._planner = planner = Planner(home, base, settings, cluster, log)
        self._supervisor = supervisor = WorkerSupervisor(
            home,
            settings,
            base,
            placement_plan,
            store,
            self._environments,
            ledger,
            self._disk.shortage,
            log,
            lambda failed, ours: planner.plan(failed, ours, self._rebalancing.times),
            self._api.endpoints,
            cluster,
            measure=planner.measure,
        )
        self._rebalancing = Rebalancing(
            supervisor,
            ledger,
            lambda *asked: elsewhere(base, settings, supervisor.failed, *asked),
            log,
            time.monotonic(),
        )
        self._notifier = Notifier(settings.notify.command, home, log)
        patience = 60 * settings.notify.blocked_minutes
        self._scheduler = scheduler = Scheduler(
            store, supervisor, settings.engine.tasks, tell=self._notifier.tell, patience=patience
        )
        self._heartbeat = Heartbeat(
            store, ledger, self._environments.outcomes, scheduler.account, lambda: scheduler.note, keep=keep
        )
        serving = Serving(store, supervisor, settings.base, settings.api.requests_per_minute)
        self._yielding = YieldLoop(
            store, supervisor, settings.resources, log, lambda: scheduler.busy or serving.busy, scheduler.wake
        )
        self._conformance = background(self._environments, store, supervisor.ruler(), log)
        self._nodes = planner.monitor(store, supervisor, scheduler.settle)
        self._hosts = planner.hosts(self._environments, supervisor)
        self._cards = CardMonitor(store, settings.resources, supervisor, log)
        self._api.serve(serving.answerer)
        self._api.show(FigureReader(home.database, ledger).rows)

    async def serve(self) -> None:
        store, supervisor = self._store, self._supervisor
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._scheduler.stop)
        store.serve()
        try:
            parts = asyncio.gather(self._environments.start(), self._start_workers())
            start = until_first(self._yielding.run(), parts)
            if await start_up(
                start, store, lambda: self._scheduler.stopping, lambda: self._compares or supervisor.waits
            ):
                await self._tell_that_it_serves()
                await self._run()
        finally:
            await self._stop()

    async def _start_workers(self) -> None:
        base, home, free = self._base, self._home.root, available_memory(self._settings.resources.memory)
        if compared_before(base, home, free) is None:
            self._compares = "The engine compares the base with transformers, which it does once for each base."
            self._log("base", self._compares, "info")
        compared, self._compares = await compare_once(base, home, free), ""
        if compared.state == UNVERIFIED:
            self._log("base", f"The base is {spoken_comparison(compared)}.", "warning")
        await self._supervisor.start()

    async def _tell_that_it_serves(self) -> None:
        store, plan = self._store, self._supervisor.placement_plan
        self._serves = True
        store.telemetry.environments(self._environments.infos())
        await store.patiently(lambda: store.telemetry.heartbeat(store.incarnation, "running"))
        self._log("engine", f"The engine serves {self._home.root} with the base {self._settings.base!r}.", "info")
        self._log("base", in_words(plan.memory), "info")
        self._log("base", precision_words(self._base, self._settings, plan), "info")
        self._log("placement", plan.words, "info")
        if self._supervisor.warning:
            self._log("base", self._supervisor.warning, "warning")

    async def _run(self) -> None:
        supervisor = self._supervisor
        await until_first(
            *(self._disk.run(), self._scheduler.run(), supervisor.run(), self._yielding.run()),
            *(self._conformance.run(), self._cards.run(), self._rebalancing.run()),
            *(self._heartbeat.run(supervisor), self._api.run()),
            *([self._nodes.run()] if self._nodes is not None else []),
            *([self._hosts.run()] if self._hosts is not None else []),
        )

    async def _stop(self) -> None:
        store, supervisor = self._store, self._supervisor
        with contextlib.suppress(StoreError):
            store.telemetry.heartbeat(store.incarnation, "stopping")
        await self._heartbeat.stop(supervisor)
        ends = (self._api.stop(), self._planner.stop(supervisor.stop()), self._environments.stop())
        await asyncio.gather(*ends, self._notifier.stop(), return_exceptions=True)
        with contextlib.suppress(StoreError):
            store.telemetry.heartbeat(store.incarnation, "stopped")

    def _log(self, kind: str, message: str, level: str) -> None:
        say(f"{level}: {message}")
        with contextlib.suppress(StoreError):
            self._store.telemetry.event(kind, message, None, level)

    def _on_environment(self, event: EnvironmentEvent) -> None:
        store, environments = self._store, self._environments
        self._log("environment", describe(event), "warning" if event.failure else "info")
        with contextlib.suppress(StoreError):
            store.telemetry.environments(environments.infos())
            if event.kind in ("loaded", "quarantined", "recovered"):
                standstills = environments.standstills(event.plugin, event.version)
                store.failing.replace(event.plugin, event.version, standstills)
        if event.kind in ("loaded", "removed"):
            self._conformance.changed(event.plugin)
        loaded = event.kind == "loaded" and self._serves
        self._scheduler.wake(names_of(event.plugin, environments.infos()) if loaded else frozenset())

    def _played(self) -> Set[str] | None:
        with contextlib.suppress(StoreError):
            return self._store.experience.environment_versions()
        return None
