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
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, WorkerDied
from ..fairness.ledger import Ledger
from ..fairness.line import NOBODY, Line, Standing
from ..paths import Home
from ..rest.resting import Rest
from ..rollout.episodes import Rollout
from ..rollout.protocol import Sampler, SamplerStats
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
from .router import Router
from .services import Load, Services
from .shared_trainer import SharedTrainer
from .staffing import Staffing
from .standby import Standby
from .stations import Stations, open_station, precision
from .task_trainer import TaskTrainer
from .tolerance import Tolerance
from .trial import comparison_tokens
from .worker_plan import WorkerSpec, sampler_spec, trainer_spec

ATTEMPTS = 3
"""At starting workers that die while they start."""
RETRY = 2.0
"""Seconds between attempts to bring dead workers back."""


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
    ) -> None:
        self._home = home
        self._settings = settings
        self._base = base
        self._staffing = staffing
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
        self.devices: dict[str, str] = {}
        """What each worker computes on, in words."""
        self.lost = asyncio.Event()
        """Set when a worker of the current incarnation has died; replaced together with the workers."""

    @property
    def warning(self) -> str:
        """What people should know of the base's way to talk, in one sentence, or nothing."""
        return self._renderer.warning

    def ruler(self) -> PromptRuler:
        """Measures first prompts as this base reads them."""
        return PromptRuler(self._renderer, self._staffing.context)

    async def start(self) -> None:
        """Start all workers, unless they are to rest. Raises what they say if they cannot."""
        await self._standby.during(self._start_again())

    async def _start_again(self) -> None:
        """Start them, again where one is killed meanwhile."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(WorkerDied):
                return await self._start()
        await self._start()

    async def _start(self) -> None:
        started = await asyncio.gather(*(self._spawn(spec) for spec in self._specs()), return_exceptions=True)
        try:
            for result in started:
                if isinstance(result, BaseException):
                    raise result
            trainer: Trainer = self.handles[self._staffing.placement.trainer.name].proxy(Trainer)
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
        self.lost = asyncio.Event()
        self._ready.set()

    def _specs(self) -> list[WorkerSpec]:
        common, plans = (self._base, self._home, self._settings), self._staffing.memory
        posts = zip(self._staffing.placement.samplers, plans, strict=True)
        samplers = [sampler_spec(*common, plan, post) for post, plan in posts]
        return [*samplers, trainer_spec(*common, plans[0], self._staffing.placement.trainer)]

    async def _open_stations(self, trainer: Trainer) -> Stations:
        stations: list[Station] = []
        tolerances = {}
        for post, plan in zip(self._staffing.placement.samplers, self._staffing.memory, strict=True):
            sampler: Sampler = self.handles[post.name].proxy(Sampler, posted=("release",))
            stored, tolerance = precision(self._base, self._settings, post, plan)
            stations.append(await open_station(sampler, post, stored, self._weight))
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
            await self._bring_back()
            self._log("worker", f"The workers were started in {monotonic() - begun:.1f} s.", "info")
        while True:
            deaths = [asyncio.ensure_future(handle.died.wait()) for handle in self.handles.values()]
            try:
                await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for death in deaths:
                    death.cancel()
            told = [handle.death().message for handle in self.handles.values() if handle.died.is_set()]
            self._let_go()
            self._log("worker", f"{' '.join(told)} A new one takes its place.", "warning")
            await self.stop()
            await self._bring_back()

    def _let_go(self) -> None:
        """Give the workers up; whoever works with them is told."""
        self._ready.clear()
        self._services = None
        self.lost.set()

    async def _bring_back(self) -> None:
        while True:
            try:
                await self._start_again()
                return
            except (MarlaasError, ValueError, OSError) as error:  # no memory or files for a process may end, too
                self._log("worker", f"The workers cannot be started: {error}", "error")
                await asyncio.sleep(RETRY)

    def _weight(self, tenant: str) -> float:
        return self.store.tenants.get(tenant).weight

    async def _spawn(self, spec: WorkerSpec) -> None:
        self.devices[spec.name] = spec.device
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
