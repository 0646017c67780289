"""Starts, watches and replaces one engine's samplers and trainers.

One dead worker is replaced if others can continue; its users continue from their last commit, or at another sampler.
Else ``lost`` is set, and tasks restart with the next incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import monotonic
from ..devices.machine import SamplerAssignment
from ..devices.usable import Ours
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, OutOfMemory, StoreError, WorkerDied
from ..fairness.line import Ledger, Standing
from ..home.paths import Home
from ..home.settings import Settings
from ..models.find import BaseModel
from ..models.memory import LEAST
from ..models.weights import unadapted
from ..racing import until_first
from ..rollout.renderer import Renderer
from ..samplers.protocol import SamplerStats
from ..store.rows import Yielding
from ..store.store import Store
from ..wire import Endpoints
from .plan import (
    LOCAL,
    PlacementPlan,
    WorkerSpec,
    loading,
    precision_words,
    until_compiled,
    wanted_of,
    with_sampler,
    worker_specs,
)
from .routing.router import SamplerEndpoints
from .services import Load, Services, ServicesFactory
from .workers.handle import Launcher, Template, WorkerHandle

if TYPE_CHECKING:
    from .cluster.cluster import Cluster


@dataclass(frozen=True)
class Aftermath:
    """Message and consequence of deaths."""

    words: str
    mended: bool


class MemoryBackoff:
    """Halves conversations of samplers out of memory, for the engine's lifetime."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, str, tuple[str, ...]], int] = {}

    def after(
        self,
        deaths: Mapping[str, WorkerDied],
        placement_plan: PlacementPlan,
        held: Mapping[str, int],
        devices: Mapping[str, str],
    ) -> Aftermath:
        """``held``: conversations by sampler; ``devices``: in words."""
        samplers = {assignment.name: assignment for assignment in placement_plan.placement.samplers}
        sentences, mended = [], True
        for name, death in deaths.items():
            words, count = death.message, held.get(name, 0)
            if isinstance(death, OutOfMemory) and name in samplers and count:
                where = f" on {devices[name]}" if samplers[name].place.gpus else ""
                words = f"The sampler {name} ran out of memory{where}"
                if count > LEAST:
                    fewer = self._most[_key(samplers[name])] = max(LEAST, count // 2)
                    sentences.append(f"{words}; it goes on with {fewer} conversations instead of {count}.")
                    continue
                words += (
                    f" with {count} conversations, and fewer are not tried. Lower `context` under [rollout] in"
                    " marlaas.toml, choose a smaller base, or leave it more memory."
                )
            sentences.append(f"{words} A new one takes its place.")
            mended = False
        return Aftermath(" ".join(sentences), mended)

    def fitted(self, placement_plan: PlacementPlan) -> PlacementPlan:
        pairs = zip(placement_plan.placement.samplers, placement_plan.memory, strict=True)
        memory = (
            replace(plan, sequences=min(plan.sequences, self._most.get(_key(sampler), plan.sequences)))
            for sampler, plan in pairs
        )
        return replace(placement_plan, memory=tuple(memory))


def _key(sampler: SamplerAssignment) -> tuple[str, str, tuple[str, ...]]:
    return sampler.name, sampler.kind, sampler.place.gpus


class Preemptible:
    """Runs work; yielding cancels it, and it restarts later."""

    def __init__(self) -> None:
        self.yielding: Yielding | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._unwanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def wanted(self) -> None:
        await self._wanted.wait()

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Raises the work's errors."""
        if self.yielding is not None:
            work.close()
            return
        self._idle.clear()
        try:
            await until_first(work, self._unwanted.wait())
        finally:
            self._idle.set()

    def begin(self, yielding: Yielding) -> None:
        """Cancel work and let none begin; repeatable."""
        self.yielding = yielding
        self._wanted.clear()
        self._unwanted.set()

    async def begun(self) -> None:
        await self._idle.wait()

    def end(self) -> None:
        """Allow work, unless ``Yielding.holds`` forbids it to tasks."""
        if self.yielding is not None and not self.yielding.holds:
            self.yielding = None
            self._unwanted.clear()
            self._wanted.set()


TEMPLATE = "template"
Launchers = Callable[[str], Awaitable[Launcher]]


class WorkerProcesses:
    """One incarnation's processes; the next's start after their end."""

    def __init__(self, logs: Path, nice: int, launcher: Launchers | None = None) -> None:
        """``launcher`` gives a node's, and raises ``MarlaasError`` for an unreachable one; None: all are here."""
        self.handles: dict[str, WorkerHandle] = {}
        self.cards: frozenset[str] = frozenset()
        self._logs = logs
        self._nice = nice
        self._launcher = launcher
        self._template: Template | None = None
        self._endings: set[asyncio.Future[None]] = set()

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        """Raises the first error; the others keep running."""
        self.cards = frozenset(cards)
        self._template = await _template(specs, self._logs)
        for result in await asyncio.gather(*map(self.start_again, specs), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def start_again(self, spec: WorkerSpec) -> None:
        template = self._template
        if template is not None and not (_forks(spec) and len(spec.cores) == template.threads and template.alive):
            template = None
        launcher = await self._launcher(spec.node) if self._launcher else LOCAL
        self.handles[spec.name] = await spec.spawn(self._logs, self._nice, template, launcher)

    def forget(self, name: str) -> None:
        ending = asyncio.ensure_future(_end(self.handles.pop(name)))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def until_death(self, *others: asyncio.Event) -> dict[str, WorkerDied]:
        await until_first(*(event.wait() for event in (*others, *(handle.died for handle in self.handles.values()))))
        return {name: handle.death() for name, handle in self.handles.items() if handle.died.is_set()}

    async def stop(self) -> None:
        for name in list(self.handles):
            self.forget(name)
        if self._endings:
            await asyncio.wait(self._endings)
        if self._template is not None:
            await self._template.stop()
            self._template = None
        self.cards = frozenset()


def _forks(spec: WorkerSpec) -> bool:
    return bool(spec.modules) and not spec.node


async def _template(specs: Sequence[WorkerSpec], logs: Path) -> Template | None:
    """For the most forkable workers with equal cores.

    None for one worker, libraries that do not survive a fork, or a failed start.
    """
    able = [spec for spec in specs if _forks(spec)]
    threads, many = max(Counter(len(spec.cores) for spec in able).items(), key=itemgetter(1), default=(0, 0))
    if many < 2 or sys.platform != "linux":
        return None
    modules = dict.fromkeys(module for spec in able if len(spec.cores) == threads for module in spec.modules)
    with contextlib.suppress(WorkerDied):
        return await Template.start(tuple(modules), threads, able[0].environment, logs / f"{TEMPLATE}.log")
    return None


async def _end(handle: WorkerHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        await handle.stop()


TRIES = 3
"""Then all workers restart if nobody else does the work, or if there is a plan on other cards or nodes."""
RETRY = 2.0
ATTEMPTS = 3
Plan = Callable[[Ours], PlacementPlan]
"""Counts this engine's memory as free."""
Measure = Callable[[PlacementPlan, Callable[[str], None]], Awaitable[bool]]
"""Measures unknown copies of the base; True: plan again. Its argument takes messages on waits."""


def replaceable(deaths: Collection[str], plan: PlacementPlan, trainers: Collection[str]) -> bool:
    """True if all others continue; ``trainers`` lived until now."""
    training = set(deaths) - {sampler.name for sampler in plan.placement.samplers}
    names = {trainer.name for trainer in plan.placement.trainers}
    return training <= names and (not training or set(trainers) > training)


class WorkerSupervisor:
    """Keeps workers alive while ``run`` runs."""

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
        """``placement_plan`` holds until workers die or yield; then ``plan`` runs in a thread. A ``cluster`` is planned
        again at the start."""
        self.cluster = cluster
        self._home, self._settings, self._base = home, settings, base
        self._plan, self._measure, self._log = plan, measure, log
        self.waits = ""
        self.mended = False
        self.store = store
        self.environments = environments
        self.shortage = shortage
        self._renderer = renderer or Renderer(base.path, wanted_of(base, with_sampler(settings, base), trains=True))
        self.draining = asyncio.Event()
        self.settling = False
        self._factory = ServicesFactory(
            *(home, settings, base, store, environments, ledger, shortage, self.draining, self._renderer, log),
            files=lambda: cluster.files if cluster else None,
            endpoints=endpoints,
        )
        launcher = cluster.launcher if cluster else None
        self._processes = processes or WorkerProcesses(home.logs, settings.resources.nice, launcher)
        self._memory_backoff = MemoryBackoff()
        self._preemptible = Preemptible()
        self._live: tuple[Services, SamplerEndpoints] | None = None
        self._ready = asyncio.Event()
        self._look = asyncio.Event()
        """Set if ``_keep`` has to look: a successor is there, or all workers have to restart."""
        self._restart = ""
        """Why all workers have to restart: ``moved`` to the present plan, or by a new one, ``failed``."""
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self.deaths = 0
        self.place(placement_plan)
        self.lost = asyncio.Event()
        """Set when a worker of the current incarnation has died; replaced together with the workers."""

    def place(self, placement_plan: PlacementPlan) -> None:
        self.placement_plan = self._memory_backoff.fitted(placement_plan)
        self._specs = {
            spec.name: spec for spec in worker_specs(self._base, self._home, self._settings, self.placement_plan)
        }
        self.devices = {name: self._device(spec) for name, spec in self._specs.items()}
        """Each worker's device in words; on another node as the settings name it, ``bob/core 0``."""

    def _device(self, spec: WorkerSpec) -> str:
        node = self.placement_plan.nodes.get(spec.node)
        return f"{node.name}/{spec.device}" if spec.node and node else spec.device

    @property
    def warning(self) -> str:
        return " ".join(filter(None, (self._renderer.warning, unadapted(self._base.config))))

    async def start(self) -> None:
        await self._preemptible.during(self._start_first())

    async def _start_first(self) -> None:
        if self.cluster is not None:
            self.waits = "The engine looks at the nodes of the cluster."
            await self._plan_anew()
        elif self._measure is not None and await self._measure(self.placement_plan, self._wait):
            await self._plan_anew()
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._start()
            except (MarlaasError, ValueError) as error:
                if self.cluster is not None:
                    await self._plan_anew()
                elif not isinstance(error, WorkerDied):
                    raise
        await self._start()

    def move(self, placement_plan: PlacementPlan) -> None:
        """Workers restart; tasks restart from their last commit."""
        if placement_plan.placement != self.placement_plan.placement:
            self.place(placement_plan)
            self._restart_all("moved")

    def _restart_all(self, why: str) -> None:
        self._restart = why
        self._look.set()

    def _wait(self, reason: str) -> None:
        self.waits = reason
        self._log("engine", reason, "info")

    async def place_anew(self) -> bool:
        """Change plans if cards or nodes differ; True if they do. Raises ``MarlaasError`` without any plan."""
        placement_plan = await self.planned_anew()
        if placement_plan is not None:
            self.move(placement_plan)
        return placement_plan is not None

    async def planned_anew(self) -> PlacementPlan | None:
        """A plan with other cards or nodes. Raises ``MarlaasError`` without any plan."""
        placement_plan = await asyncio.to_thread(self._plan, self.ours)
        new, present = placement_plan.placement, self.placement_plan.placement
        return placement_plan if (new.devices, new.nodes) != (present.devices, present.nodes) else None

    async def _plan_anew(self) -> None:
        before = self.placement_plan.placement
        self.place(await asyncio.to_thread(self._plan, self.ours))
        if self.placement_plan.placement != before:
            self._log("placement", self.placement_plan.words, "info")

    async def _start(self) -> None:
        self._restart = ""
        specs, plan = list(self._specs.values()), self.placement_plan
        await until_compiled(specs, self._wait)
        self.waits = loading(specs)
        placement = plan.placement
        try:
            await self._processes.start(specs, placement.cards)
            self._live = await self._factory.open(self._processes.handles, plan)
        except BaseException:
            await self.stop()
            raise
        with contextlib.suppress(StoreError):
            words = precision_words(self._base, self._settings, plan)
            self.store.telemetry.placed(self.store.incarnation, placement.reasons, plan.kinds, words)
        self.lost = asyncio.Event()
        self.waits = ""
        self._ready.set()
        self._note()

    @property
    def ours(self) -> Ours:
        return Ours(frozenset(pid for _, pid in self.processes()), self._processes.cards)

    def processes(self) -> list[tuple[str, int]]:
        workers = [(name, handle.pid) for name, handle in self._processes.handles.items() if not handle.node]
        environments = [(f"env {name}", pid) for name, pid in self.environments.processes()]
        return [("engine", os.getpid()), *workers, *environments]

    def nodes_of_workers(self) -> dict[str, str]:
        return {name: handle.node for name, handle in self._processes.handles.items()}

    def draining_nodes(self, names: frozenset[str]) -> None:
        if self.cluster is not None:
            self.cluster.drained = names

    async def reload(self, plugin: str) -> None:
        await self.environments.reload(plugin)

    def loads(self) -> dict[str, Load]:
        return self._live[0].loads() if self._live else {}

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        return await self._live[1].stats(patience) if self._live else {}

    def standings(self) -> dict[str, list[Standing]]:
        return self._live[0].standings() if self._live else {}

    async def services(self) -> Services:
        while not (self.ready and self._live):
            await (self._changed if self._ready.is_set() else self._ready).wait()
        return self._live[0]

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and self._live is not None and self._live[1].alive

    @property
    def starting(self) -> frozenset[str]:
        starting = [name for name, start in self._starts.items() if not start.done()]
        if not self._ready.is_set():
            starting = list(self._specs) if self.yielding is None else []
        return frozenset(name for name in starting if not (name in self._specs and self._specs[name].node))

    async def noticed(self, since: int) -> None:
        """Wait for more than ``since`` noticed deaths, all handled."""
        while self.deaths <= since or any(handle.died.is_set() for handle in self._processes.handles.values()):
            await self._changed.wait()

    def _note(self, deaths: int = 0) -> None:
        self.deaths += deaths
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def yielding(self) -> Yielding | None:
        return self._preemptible.yielding

    async def yield_machine(self, yielding: Yielding) -> None:
        """Ends starting and busy workers too; sets ``lost`` at once."""
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
            deaths = await self._processes.until_death(self._look)
            self._look.clear()
            held = self._live[1].conversations if self._live else {}
            after = self._memory_backoff.after(deaths, self.placement_plan, held, self.devices)
            alone = not self._restart and (not deaths or self._replace(deaths))
            if deaths:
                self.mended = after.mended
                self._log("worker", f"{after.words} All other workers go on." if alone else after.words, "warning")
            if alone:
                continue
            self.mended = bool(deaths) and after.mended
            anew = self._restart == "failed" or bool(deaths)
            self._let_go(len(deaths))
            if not anew:
                self._log("placement", self.placement_plan.words, "info")
            await self.stop()
            await self._bring_back(anew)

    def _replace(self, deaths: Mapping[str, WorkerDied]) -> bool:
        if self._live is None or not replaceable(deaths, self.placement_plan, self._live[0].trainers.trainers):
            return False
        services, endpoints = self._live
        self.place(self.placement_plan)
        for name in deaths:
            (endpoints if name in endpoints.by_name else services.trainers).lose(name)
            self._processes.forget(name)
            if name in self._starts:
                self._starts[name].cancel()
            self._starts[name] = asyncio.ensure_future(self._succeed(name, services, endpoints))
        self._note(len(deaths))
        return True

    async def _succeed(self, name: str, services: Services, endpoints: SamplerEndpoints) -> None:
        """All workers restart if this fails and nobody else does its work."""
        samples, message, tries = name in endpoints.by_name, "", 0
        while True:
            try:
                await self._processes.start_again(self._specs[name])
                handles, plan = self._processes.handles, self.placement_plan
                if samples:
                    endpoint = await self._factory.endpoint(handles, plan, name, endpoints.clock)
                    endpoints.take_in(endpoint)
                    services.router.take_in(endpoint)
                else:
                    services.trainers.take_in(self._factory.trainer(handles, plan, name, services.trainers.clock))
                break
            except (MarlaasError, ValueError, OSError) as error:
                if message != (message := str(error)):
                    self._log("worker", f"Worker {name} cannot be started: {message}", "error")
            if name in self._processes.handles:
                self._processes.forget(name)
                self._note()
            tries += 1
            if tries >= TRIES and not (endpoints.alive if samples else services.trainers.trainers):
                return self._restart_all("failed")
            if tries % TRIES == 0:
                with contextlib.suppress(MarlaasError):
                    if await self.place_anew():
                        return
            await asyncio.sleep(RETRY)
        self._look.set()
        self._note()

    def _let_go(self, deaths: int = 0) -> None:
        self._ready.clear()
        if self._live is not None:
            self._live[0].trainers.end()
        self._live = None
        self.lost.set()
        self._note(deaths)

    async def _bring_back(self, anew: bool) -> None:
        message = ""
        while True:
            try:
                if anew:
                    await self._plan_anew()
                return await self._start()
            except (MarlaasError, ValueError, OSError) as error:
                if message != (message := str(error)):
                    self._log("worker", f"The workers cannot be started: {message}", "error")
                anew = True
                await asyncio.sleep(RETRY)

    async def stop(self) -> None:
        """After a cancellation, the next call ends the rest."""
        starts, self._starts = list(self._starts.values()), {}
        for start in starts:
            start.cancel()
        if starts:
            await asyncio.wait(starts)
        await self._processes.stop()
