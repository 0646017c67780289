"""The rollout and training workers of one engine: started together, watched, and replaced when one dies.

Who is to work where flows in, ``Services`` with live workers flow out. Whoever works with a dead incarnation is told by
``lost``; tasks then begin again from their last commit with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from time import monotonic

from ..base.model import BaseModel
from ..config import Settings
from ..devices.plan import Sharing
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, StoreError, WorkerDied
from ..fairness.clock import SharedClock
from ..fairness.ledger import Ledger
from ..fairness.line import NOBODY, Line, Standing
from ..paths import Home
from ..rest.resting import Rest
from ..rollout.episodes import Rollout
from ..rollout.protocol import SamplerStats
from ..rollout.renderer import Renderer
from ..rollout.ruler import PromptRuler
from ..rollout.station import Station
from ..spec import TaskSpec
from ..store.store import Store
from ..training.protocol import Trainer
from ..workers.handle import WorkerHandle
from . import preflight
from .agreement import compare
from .floors import Floors
from .posts import sampler_at, trainer_at, worker_specs
from .router import Router
from .services import Load, Services
from .shared_trainer import SharedTrainer
from .staffing import Staffing
from .standby import Standby
from .stations import Stations, open_station, precision
from .task_trainer import TaskTrainer
from .tolerance import Tolerance
from .trial import comparison_tokens
from .worker_plan import WorkerSpec

ATTEMPTS = 3
"""At starting workers that die while they start."""
RETRY = 2.0
"""Seconds between attempts to bring dead workers back."""

Plan = Callable[[tuple[Sharing, ...]], Staffing]
"""Who works where on the machine as it is at the moment, without ways of sharing a card that have failed here."""


class Crew:
    """Keeps the workers alive for as long as ``run`` runs."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        base: BaseModel,
        staffing: Staffing,
        store: Store,
        environments: EnvironmentService,
        ledger: Ledger,
        shortage: Callable[[], str],
        log: Callable[[str, str, str], None],
        plan: Plan,
    ) -> None:
        """``staffing`` holds until workers die or rest; then ``plan`` is asked, in a thread, for it takes its time."""
        self._home = home
        self._settings = settings
        self._base = base
        self._plan = plan
        self._failed: tuple[Sharing, ...] = ()
        """Ways of sharing a card that could not be started."""
        self._moved = asyncio.Event()
        """Set when the workers are to go over to other posts."""
        self.store = store
        self._environments = environments
        self._ledger = ledger
        self._shortage = shortage
        self._log = log
        self._renderer = Renderer(base.path)
        self._floors = Floors()
        self._stations: Stations | None = None
        self._services: Services | None = None
        self._standby = Standby()
        self._endings: set[asyncio.Future[None]] = set()
        self._ready = asyncio.Event()
        self.handles: dict[str, WorkerHandle] = {}
        self.draining = asyncio.Event()
        """Set once tasks are to end with the step that they are at."""
        self._man(staffing)
        self.lost = asyncio.Event()
        """Set when a worker of the current incarnation has died; replaced together with the workers."""

    def _man(self, staffing: Staffing) -> None:
        """From their next start on, the workers are placed like this."""
        self.staffing = staffing
        self._specs = worker_specs(self._base, self._home, self._settings, staffing)
        self.devices = {spec.name: spec.device for spec in self._specs}
        """What each worker computes on, in words."""

    @property
    def warning(self) -> str:
        """What people should know of the base's way to talk, in one sentence, or nothing."""
        return self._renderer.warning

    def ruler(self) -> PromptRuler:
        """Measures first prompts as this base reads them."""
        return PromptRuler(self._renderer, self.staffing.context)

    async def start(self) -> None:
        """Start all workers, unless they are to rest. Raises what they say if they cannot."""
        await self._standby.during(self._start_again())

    def move(self, staffing: Staffing) -> None:
        """Go over to other posts: all workers end and start there; tasks begin again from their last commit."""
        if staffing.placement != self.staffing.placement:
            self._man(staffing)
            self._moved.set()

    async def _start_again(self) -> None:
        """Start them, again where one is killed meanwhile, and with less in common where what they share fails."""
        for last in (*[False] * (ATTEMPTS - 1), True):
            sharing = self.staffing.placement.trainer.sharing
            try:
                return await self._start()
            except (MarlaasError, ValueError) as error:
                if sharing:
                    self._failed += (sharing,)
                    self._log("placement", f"Sampler and trainer cannot share a card by {sharing}: {error}", "warning")
                    await self._plan_anew()
                elif last or not isinstance(error, WorkerDied):
                    raise

    async def _plan_anew(self) -> None:
        """Place the workers as the machine is by now, and say so where that is elsewhere."""
        before = self.staffing.placement
        self._man(await asyncio.to_thread(self._plan, self._failed))
        if self.staffing.placement != before:
            self._log("placement", self.staffing.words, "info")

    async def _start(self) -> None:
        self._moved.clear()
        started = await asyncio.gather(*(self._spawn(spec) for spec in self._specs), return_exceptions=True)
        try:
            for result in started:
                if isinstance(result, BaseException):
                    raise result
            trainer = trainer_at(self.handles, self.staffing)
            self._stations = await self._open_stations(trainer)
        except BaseException:
            await self.stop()
            raise
        shared = SharedTrainer(trainer, Line(self._weight), self._ledger, self._settings.training.fuse)
        stations = self._stations
        self._services = Services(
            home=self._home,
            store=self.store,
            environments=self._environments,
            rollout=Rollout(self._renderer, self._ledger),
            stations=stations.by_name,
            router=Router(tuple(stations.by_name.values()), stations.costs, self._ledger.mixes),
            shared=shared,
            trainer=TaskTrainer(shared, NOBODY, alone=True),
            tolerances=stations.tolerances,
            floors=self._floors,
            shortage=self._shortage,
            token_steps=self._settings.disk.token_steps,
            draining=self.draining,
        )
        with contextlib.suppress(StoreError):
            self.store.telemetry.placed(self.store.incarnation, self.staffing.placement.reasons)
        self.lost = asyncio.Event()
        self._ready.set()

    async def _open_stations(self, trainer: Trainer) -> Stations:
        stations: list[Station] = []
        clock: SharedClock[str] = SharedClock()
        tolerances = {}
        for post, plan in zip(self.staffing.placement.samplers, self.staffing.memory, strict=True):
            sampler = sampler_at(self.handles, self.staffing, post)
            trained = self.staffing.placement.trainer
            stored, tolerance = precision(self._base, self._settings, post, plan, trained)
            limits = await sampler.limits()
            if limits.note:
                self._log("worker", limits.note, "warning")
            stations.append(open_station(sampler, limits, post, stored, Line(self._weight, clock)))
            tolerances[post.name] = tolerance
            if self._settings.rollout.gguf and post.kind == "llama.cpp":
                await self._compare(stations[-1], trainer, tolerance)
        return Stations(stations, tolerances, self._base)

    def processes(self) -> list[tuple[str, int]]:
        """What each process of this engine is called, and its id: the engine's own, workers', environments'."""
        workers = [(name, handle.pid) for name, handle in self.handles.items()]
        environments = [(f"env {name}", pid) for name, pid in self._environments.processes()]
        return [("engine", os.getpid()), *workers, *environments]

    async def reload(self, plugin: str) -> None:
        """Read an environment plugin anew; see ``EnvironmentService.reload``."""
        await self._environments.reload(plugin)

    def loads(self) -> dict[str, Load]:
        """What waits at the workers, and what they are at, by worker; nothing while there are none."""
        return self._services.loads() if self._services else {}

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        """Totals of the samplers that answer within ``patience`` seconds; nothing while there are none."""
        return await self._stations.stats(patience) if self._services and self._stations else {}

    def standings(self) -> dict[str, list[Standing]]:
        """Where tenants stand in the workers' lines, by stage; nothing while there are none."""
        return self._services.standings() if self._services else {}

    async def services(self) -> Services:
        """The stages with live workers, waiting for them if need be."""
        while True:
            await self._ready.wait()
            if self._services is not None:
                return self._services

    @property
    def ready(self) -> bool:
        """Whether the workers live, as far as is known."""
        return self._ready.is_set()

    @property
    def resting(self) -> Rest | None:
        """Why there are to be no workers; None: there are, or they start."""
        return self._standby.resting

    async def rest(self, rest: Rest) -> None:
        """End all workers, also those that start or are at a call: ``lost`` is set at once, their end is waited for."""
        self._standby.begin(rest)
        self._let_go()
        await self._standby.begun()
        await self.stop()

    def wake(self) -> None:
        """A task wants workers: they start, unless a rest holds."""
        self._standby.end()

    async def check(self, task: int, spec: TaskSpec) -> None:
        """Raise ``Blocked`` where a task could not run though there were workers."""
        await preflight.check(task, spec, self.store, self._environments, self._shortage)

    async def run(self) -> None:
        """Have workers whenever there is no rest, until cancelled."""
        while True:
            await self._standby.wanted()
            await self._standby.during(self._keep())

    async def _keep(self) -> None:
        """Start the workers where there are none, and replace them whenever one dies."""
        if not self.ready:
            begun = monotonic()
            await self._bring_back(anew=True)
            self._log("worker", f"The workers were started in {monotonic() - begun:.1f} s.", "info")
        while True:
            ends = [self._moved, *(handle.died for handle in self.handles.values())]
            waits = [asyncio.ensure_future(end.wait()) for end in ends]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            told = [handle.death().message for handle in self.handles.values() if handle.died.is_set()]
            self._let_go()
            if told:
                self._log("worker", f"{' '.join(told)} A new one takes its place.", "warning")
            else:
                self._log("placement", self.staffing.words, "info")
            await self.stop()
            await self._bring_back(anew=bool(told))

    def _let_go(self) -> None:
        """Give the workers up; whoever works with them is told."""
        self._ready.clear()
        self._services = None
        self.lost.set()

    async def _bring_back(self, anew: bool) -> None:
        """Start workers, again and again; ``anew``: on what others have left of the machine meanwhile."""
        told = ""
        while True:
            try:
                if anew:
                    await self._plan_anew()
                return await self._start_again()
            except (MarlaasError, ValueError, OSError) as error:  # no memory or files for a process may end, too
                if told != (told := str(error)):
                    self._log("worker", f"The workers cannot be started: {told}", "error")
                await asyncio.sleep(RETRY)

    def _weight(self, tenant: str) -> float:
        return self.store.tenants.get(tenant).weight

    async def _spawn(self, spec: WorkerSpec) -> None:
        self.handles[spec.name] = await spec.spawn(self._home.logs, self._settings.resources.nice)

    async def _compare(self, station: Station, trainer: Trainer, tolerance: Tolerance) -> None:
        """Raise ``BaseModelError`` if a file that a person brought holds another base than the trainer's."""
        tokens = comparison_tokens(self._renderer, station.context)
        agreement = await compare(station.sampler, trainer, tokens, self._home.scratch)
        agreement.check(tolerance, f"The file {self._settings.rollout.gguf}")

    async def stop(self) -> None:
        """End all workers; who is cancelled while waiting for that leaves it to the next who stops them."""
        handles, self.handles = list(self.handles.values()), {}
        for handle in handles:
            ending = asyncio.ensure_future(_end(handle))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
        if self._endings:
            await asyncio.wait(self._endings)


async def _end(handle: WorkerHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        await handle.stop()
