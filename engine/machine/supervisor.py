"""Starts, watches and replaces the rollout and training workers of one engine.

If the others can continue when a worker dies, only that one is replaced. Else ``lost`` is set; tasks then restart from
their last commit with the next incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..clock import monotonic
from ..devices.machine import Sharing
from ..devices.usable import Ours
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, StoreError, WorkerDied
from ..fairness.line import Ledger, Standing
from ..home.paths import Home
from ..home.settings import Settings
from ..models.find import BaseModel
from ..models.weights import unadapted
from ..rollout.renderer import PromptRuler, Renderer
from ..samplers.protocol import SamplerStats
from ..store.rows import Yielding
from ..store.store import Store
from ..wire import Endpoints
from .plan import PlacementPlan, WorkerSpec, loading, precision_words, sharing_assignment, until_compiled, worker_specs
from .processes import MemoryBackoff, Preemptible, WorkerProcesses
from .routing.router import SamplerEndpoints
from .services import Load, Services, ServicesFactory

if TYPE_CHECKING:
    from .cluster.cluster import Cluster


# Replaces workers that died while the others continue.
#
# Users of a dead worker continue from their last commit, or with their next turn at another sampler with the same
# version. If a successor cannot be started, and nobody else does the work, all workers restart.

TRIES = 3
"""Tries at starting a successor; then it may be placed elsewhere, even if others do the work."""
RETRY = 2.0


@dataclass(frozen=True)
class Live:
    """The services and samplers of one incarnation of the workers."""

    services: Services
    endpoints: SamplerEndpoints


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
        supervisor: WorkerSupervisor,
        log: Callable[[str, str, str], None],
    ) -> None:
        self.deaths = 0
        self.returned = asyncio.Event()
        self._processes = processes
        self._factory = factory
        self._supervisor = supervisor
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
                await self._processes.start_again(self._supervisor.spec(name))
                await self._take_in(name, live)
                break
            except (MarlaasError, ValueError, OSError) as error:
                if told != (told := str(error)):
                    self._log("worker", f"Worker {name} cannot be started: {told}", "error")
            if name in self._processes.handles:
                self._processes.forget(name)
                self.wake()
            tries += 1
            if (tries >= TRIES or not _others(name, live)) and await self._supervisor.moves_away():
                return
            if tries >= TRIES and not _others(name, live):
                self._supervisor.anew.set()
                return
            await asyncio.sleep(RETRY)
        self.returned.set()
        self.wake()

    async def _take_in(self, name: str, live: Live) -> None:
        handles, plan, services = self._processes.handles, self._supervisor.placement_plan, live.services
        if name not in live.endpoints.by_name:
            services.trainers.take_in(self._factory.trainer(handles, plan, name, services.trainers.clock))
            return
        endpoint = await self._factory.endpoint(handles, plan, name, live.endpoints.clock)
        live.endpoints.take_in(endpoint)
        services.router.take_in(endpoint)


def _others(name: str, live: Live) -> bool:
    return live.endpoints.alive if name in live.endpoints.by_name else bool(live.services.trainers.trainers)


# Starts, watches and replaces the rollout and training workers of one engine.
#
# If the others can continue when a worker dies, only that one is replaced (``replacements``). Else ``lost`` is set;
# tasks then restart from their last commit with the next incarnation.

ATTEMPTS = 3
Plan = Callable[[tuple[Sharing, ...], Ours], PlacementPlan]
"""Makes a plan for the machine as it is. It avoids the given failed ways of sharing a card, and counts what this
engine holds as free."""
Measure = Callable[[PlacementPlan, Callable[[str], None]], Awaitable[bool]]
"""Measures unknown copies of the base that the plan chooses from; returns True if a new plan is needed. It gets a
function for messages on the start's waits."""


class WorkerSupervisor:
    """Keeps the workers alive while ``run`` runs."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        base: BaseModel,
        placement_plan: PlacementPlan,
        store: Store,
        environments: EnvironmentService,
        ledger: Ledger,
        shortage: Callable[[], str],
        log: Callable[[str, str, str], None],
        plan: Plan,
        endpoints: Endpoints | None = None,
        cluster: Cluster | None = None,
        processes: WorkerProcesses | None = None,
        renderer: Renderer | None = None,
        measure: Measure | None = None,
    ) -> None:
        """``placement_plan`` holds until workers die or yield; then ``plan`` is called in a thread.

        With a ``cluster`` the first plan is made again when the workers start. A simulation passes its own
        ``processes`` and ``renderer``.
        """
        self.cluster = cluster
        self._home = home
        self._settings = settings
        self._base = base
        self._plan = plan
        self._measure = measure
        self.waits = ""
        self.failed: tuple[Sharing, ...] = ()
        self._memory_backoff = MemoryBackoff()
        self.mended = False
        self._moved = asyncio.Event()
        self.anew = asyncio.Event()
        self.store = store
        self.environments = environments
        self.shortage = shortage
        self._log = log
        self._renderer = renderer or Renderer(base.path)
        self.draining = asyncio.Event()
        self.settling = False
        self._opening = ServicesFactory(
            *(home, settings, base, store, environments, ledger, shortage, self.draining, self._renderer, log),
            files=lambda: cluster.files if cluster else None,
            endpoints=endpoints,
        )
        nice = settings.resources.nice
        self._worker_processes = processes or (
            WorkerProcesses(home.logs, nice, cluster.launcher) if cluster else WorkerProcesses(home.logs, nice)
        )
        self._live: Live | None = None
        self._replacements = Replacements(self._worker_processes, self._opening, self, log)
        self._preemptible = Preemptible()
        self._ready = asyncio.Event()
        self.place(placement_plan)
        self.lost = asyncio.Event()
        """Set when a worker of the current incarnation has died; replaced together with the workers."""

    def place(self, placement_plan: PlacementPlan) -> None:
        self.hosts = placement_plan.placement.hosts
        self._follow(placement_plan)

    def _follow(self, placement_plan: PlacementPlan) -> None:
        self.placement_plan = self._memory_backoff.fitted(placement_plan)
        self._specs = worker_specs(self._base, self._home, self._settings, self.placement_plan)
        self._elsewhere = frozenset(spec.name for spec in self._specs if spec.node)
        self.devices = {spec.name: self._place_of(spec) for spec in self._specs}
        """Each worker's device in words; on another node as the settings name it, ``bob/core 0``."""

    def spec(self, name: str) -> WorkerSpec:
        return next(spec for spec in self._specs if spec.name == name)

    def _place_of(self, spec: WorkerSpec) -> str:
        node = self.placement_plan.machines.get(spec.node)
        return f"{node.name}/{spec.device}" if spec.node and node else spec.device

    @property
    def warning(self) -> str:
        return " ".join(filter(None, (self._renderer.warning, unadapted(self._base.config))))

    def ruler(self) -> PromptRuler:
        return PromptRuler(self._renderer, self.placement_plan.context)

    async def start(self) -> None:
        await self._preemptible.during(self._start_first())

    async def _start_first(self) -> None:
        if self.cluster is not None:
            self.waits = "The engine looks at the nodes of the cluster."
            await self._plan_anew()
        elif self._measure is not None and await self._measure(self.placement_plan, self._wait):
            await self._plan_anew()
        await self._start_again()

    def move(self, placement_plan: PlacementPlan) -> None:
        """Change to another plan: all workers restart by it; tasks restart from their last commit."""
        if placement_plan.placement != self.placement_plan.placement:
            self.place(placement_plan)
            self._moved.set()

    async def _start_again(self) -> None:
        for last in (*[False] * (ATTEMPTS - 1), True):
            sharing = self.placement_plan.placement.trainer.sharing
            try:
                return await self._start()
            except (MarlaasError, ValueError) as error:
                if sharing:
                    self.failed += (sharing,)
                    self._log("placement", f"Sampler and trainer cannot share a card by {sharing}: {error}", "warning")
                    await self._plan_anew()
                elif last or not (isinstance(error, WorkerDied) or self.cluster):
                    raise
                elif self.cluster is not None:
                    await self._plan_anew()

    def _wait(self, reason: str) -> None:
        self.waits = reason
        self._log("engine", reason, "info")

    async def place_anew(self) -> bool:
        """Change to a new plan if it uses other cards or nodes; returns True if it does.

        Raises ``MarlaasError`` if nothing can be planned.
        """
        placement_plan = await self.planned_anew()
        if placement_plan is not None:
            self.move(placement_plan)
        return placement_plan is not None

    async def planned_anew(self) -> PlacementPlan | None:
        """A new plan, if it uses other cards or nodes than the present one; else None.

        Raises ``MarlaasError`` if nothing can be planned.
        """
        placement_plan = await asyncio.to_thread(self._plan, self.failed, self.ours)
        self.hosts = placement_plan.placement.hosts
        return placement_plan if _where(placement_plan) != _where(self.placement_plan) else None

    async def _plan_anew(self) -> None:
        before = self.placement_plan.placement
        self.place(await asyncio.to_thread(self._plan, self.failed, self.ours))
        if self.placement_plan.placement != before:
            self._log("placement", self.placement_plan.words, "info")

    async def _start(self) -> None:
        self._moved.clear()
        self.anew.clear()
        await until_compiled(self._specs, self._wait)
        self.waits = loading(self._specs)
        placement_plan = self.placement_plan
        if self.cluster is not None:
            self.cluster.held = _held(placement_plan)
        try:
            await self._worker_processes.start(self._specs, placement_plan.placement.cards)
            self._live = Live(*await self._opening.open(self._worker_processes.handles, placement_plan))
        except BaseException:
            await self.stop()
            raise
        with contextlib.suppress(StoreError):
            words = precision_words(self._base, self._settings, placement_plan)
            reasons, kinds = placement_plan.placement.reasons, placement_plan.kinds
            self.store.telemetry.placed(self.store.incarnation, reasons, kinds, words)
        self.lost = asyncio.Event()
        self.waits = ""
        self._ready.set()
        self._replacements.wake()

    @property
    def ours(self) -> Ours:
        return Ours(frozenset(pid for _, pid in self.processes()), self._worker_processes.cards)

    def processes(self) -> list[tuple[str, int]]:
        workers = [(name, handle.pid) for name, handle in self._worker_processes.handles.items() if not handle.node]
        environments = [(f"env {name}", pid) for name, pid in self.environments.processes()]
        return [("engine", os.getpid()), *workers, *environments]

    def nodes_of_workers(self) -> dict[str, str]:
        return {name: handle.node for name, handle in self._worker_processes.handles.items()}

    def draining_nodes(self, names: frozenset[str]) -> None:
        if self.cluster is not None:
            self.cluster.drained = names

    async def reload(self, plugin: str) -> None:
        await self.environments.reload(plugin)

    def loads(self) -> dict[str, Load]:
        return self._live.services.loads() if self._live else {}

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        return await self._live.endpoints.stats(patience) if self._live else {}

    def standings(self) -> dict[str, list[Standing]]:
        return self._live.services.standings() if self._live else {}

    async def services(self) -> Services:
        while True:
            await self._ready.wait()
            if self._live is not None and self._live.endpoints.alive:
                return self._live.services
            await self._replacements.change()

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and self._live is not None and self._live.endpoints.alive

    @property
    def starting(self) -> frozenset[str]:
        if self._ready.is_set():
            return self._replacements.starting - self._elsewhere
        return frozenset(self.devices) - self._elsewhere if self.yielding is None else frozenset()

    @property
    def deaths(self) -> int:
        return self._replacements.deaths

    async def noticed(self, since: int) -> None:
        await self._replacements.noticed(since)

    @property
    def yielding(self) -> Yielding | None:
        return self._preemptible.yielding

    async def yield_machine(self, yielding: Yielding) -> None:
        """End all workers, also starting and busy ones: ``lost`` is set at once, their end is waited for."""
        self._preemptible.begin(yielding)
        self._let_go()
        await self._preemptible.begun()
        await self.stop()

    def wake(self) -> None:
        self._preemptible.end()

    async def run(self) -> None:
        while True:
            await self._preemptible.wanted()
            await self._preemptible.during(self._keep())

    async def _keep(self) -> None:
        if not self._ready.is_set():
            begun = monotonic()
            await self._bring_back(anew=True)
            self._log("worker", f"The workers were started in {monotonic() - begun:.1f} s.", "info")
        while True:
            deaths = await self._worker_processes.until_death(self._moved, self.anew, self._replacements.returned)
            self._replacements.returned.clear()
            held = self._live.endpoints.conversations if self._live else {}
            after = self._memory_backoff.after(deaths, self.placement_plan, held, self.devices)
            anew = self.anew.is_set() or bool(deaths)
            alone = not (self._moved.is_set() or self.anew.is_set()) and self._go_on_without(deaths)
            if deaths:
                self._log("worker", f"{after.words} All other workers go on." if alone else after.words, "warning")
            if alone:
                if deaths:
                    self.mended = after.mended
                continue
            self.mended = bool(deaths) and after.mended
            self._let_go(len(deaths))
            if not anew:
                self._log("placement", self.placement_plan.words, "info")
            await self.stop()
            await self._bring_back(anew)

    def _go_on_without(self, deaths: Mapping[str, WorkerDied]) -> bool:
        if not deaths:
            return True
        live = self._live
        if live is None or not replaceable(deaths, self.placement_plan, live.services.trainers.trainers):
            return False
        self._follow(self.placement_plan)
        self._replacements.replace(deaths, live)
        return True

    async def moves_away(self) -> bool:
        """Move all workers if a new plan names other devices; returns True if it does."""
        try:
            return await self.place_anew()
        except MarlaasError:
            return False

    def _let_go(self, deaths: int = 0) -> None:
        self._ready.clear()
        if self._live is not None:
            self._live.services.trainers.end()
        self._live = None
        self.lost.set()
        self._replacements.note(deaths)

    async def _bring_back(self, anew: bool) -> None:
        told = ""
        while True:
            try:
                if anew:
                    await self._plan_anew()
                return await self._start_again()
            except (MarlaasError, ValueError, OSError) as error:
                if told != (told := str(error)):
                    self._log("worker", f"The workers cannot be started: {told}", "error")
                await asyncio.sleep(RETRY)

    async def stop(self) -> None:
        """End all workers; after a cancellation, the next call ends the rest."""
        await self._replacements.stop()
        await self._worker_processes.stop()


def _where(plan: PlacementPlan) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    return plan.placement.devices, plan.placement.nodes


def _held(plan: PlacementPlan) -> dict[str, frozenset[str]]:
    placement = plan.placement
    return {node: frozenset(uuid for at, uuid in placement.devices if at == node) for node in placement.nodes}
