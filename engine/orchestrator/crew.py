"""The rollout and training workers of one engine: started together, watched, and replaced when one dies.

Settings flow in, ``Services`` with live workers flow out. Whoever works with a dead incarnation is told by ``lost``;
tasks then begin again from their last commit with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from ..base.fit import MemoryPlan
from ..base.model import BaseModel
from ..base.precision import REPEATABLE
from ..config import Settings
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, WorkerDied
from ..fairness.ledger import Ledger
from ..fairness.line import NOBODY, Line, Standing
from ..paths import Home
from ..rollout.episodes import Rollout
from ..rollout.protocol import Sampler
from ..rollout.renderer import Renderer
from ..rollout.ruler import PromptRuler
from ..rollout.seats import Seats
from ..store.store import Store
from ..training.protocol import Trainer
from ..workers.handle import WorkerHandle
from .agreement import compare
from .floors import Floors
from .services import Load, Services
from .shared_trainer import SharedTrainer
from .task_trainer import TaskTrainer
from .tolerance import tolerance_of
from .trial import comparison_tokens
from .worker_plan import WorkerSpec, sampler_spec, stored_as, trainer_spec

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
        memory: MemoryPlan,
        store: Store,
        environments: EnvironmentService,
        ledger: Ledger,
        shortage: Callable[[], str],
        log: Callable[[str, str, str], None],
    ) -> None:
        self._home = home
        self._settings = settings
        self._base = base
        self._memory = memory
        self._store = store
        self._environments = environments
        self._ledger = ledger
        self._shortage = shortage
        self._log = log
        stored = stored_as(base, settings, memory)
        self._tolerance = tolerance_of(settings.rollout, stored)
        self._repeatable = stored in REPEATABLE
        self._renderer = Renderer(base.path)
        self._floors = Floors()
        self._services: Services | None = None
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
        return PromptRuler(self._renderer, self._memory.context)

    async def start(self) -> None:
        """Start both workers, again where one is killed meanwhile. Raises what they say if they cannot."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(WorkerDied):
                return await self._start()
        await self._start()

    async def _start(self) -> None:
        specs = (
            sampler_spec(self._base, self._home, self._settings, self._memory),
            trainer_spec(self._base, self._home, self._settings, self._memory),
        )
        started = await asyncio.gather(*(self._spawn(spec) for spec in specs), return_exceptions=True)
        for result in started:
            if isinstance(result, BaseException):
                await self.stop()
                raise result
        sampler: Sampler = self.handles["rollout"].proxy(Sampler, posted=("release",))
        trainer: Trainer = self.handles["training"].proxy(Trainer)
        try:
            limits = await sampler.limits()
            if self._settings.rollout.gguf:
                await self._compare(sampler, trainer, limits.context)
        except (MarlaasError, ValueError):
            await self.stop()
            raise
        seats = Seats(limits.sequences, Line(self._weight))
        shared = SharedTrainer(trainer, Line(self._weight), self._ledger, self._settings.training.fuse)
        self._services = Services(
            home=self._home,
            store=self._store,
            environments=self._environments,
            rollout=Rollout(sampler, self._renderer, limits.context, seats, self._ledger),
            sampler=sampler,
            shared=shared,
            trainer=TaskTrainer(shared, NOBODY, alone=True),
            tolerance=self._tolerance,
            floors=self._floors,
            shortage=self._shortage,
            token_steps=self._settings.disk.token_steps,
            repeatable=self._repeatable,
            draining=self.draining,
        )
        self.lost = asyncio.Event()
        self._ready.set()

    def processes(self) -> list[tuple[str, int]]:
        """What each process of this engine is called, and its id: the engine's own, workers', environments'."""
        workers = [(name, handle.pid) for name, handle in self.handles.items()]
        environments = [(f"env {name}", pid) for name, pid in self._environments.processes()]
        return [("engine", os.getpid()), *workers, *environments]

    async def reload(self, plugin: str) -> None:
        """Read an environment plugin anew; see ``EnvironmentService.reload``."""
        await self._environments.reload(plugin)

    def loads(self) -> dict[str, Load]:
        """What waits at the workers, and what they are at; nothing while there are none."""
        return self._services.loads() if self._services else {}

    def standings(self) -> dict[str, list[Standing]]:
        """Where tenants stand in the workers' lines, by stage; nothing while there are none."""
        return self._services.standings() if self._services else {}

    async def services(self) -> Services:
        """The stages with live workers, waiting for them if need be."""
        while True:
            await self._ready.wait()
            if self._services is not None:
                return self._services

    async def run(self) -> None:
        """Replace the workers whenever one dies, until cancelled."""
        while True:
            deaths = [asyncio.ensure_future(handle.died.wait()) for handle in self.handles.values()]
            try:
                await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for death in deaths:
                    death.cancel()
            told = [handle.death().message for handle in self.handles.values() if handle.died.is_set()]
            self._ready.clear()
            self._services = None
            self.lost.set()
            self._log("worker", f"{' '.join(told)} A new one takes its place.", "warning")
            await self.stop()
            await self._bring_back()

    async def _bring_back(self) -> None:
        while True:
            try:
                await self.start()
                return
            except (MarlaasError, ValueError, OSError) as error:  # no memory or files for a process may end, too
                self._log("worker", f"The workers cannot be started: {error}", "error")
                await asyncio.sleep(RETRY)

    def _weight(self, tenant: str) -> float:
        return self._store.tenants.get(tenant).weight

    async def _spawn(self, spec: WorkerSpec) -> None:
        self.devices[spec.name] = spec.device
        self.handles[spec.name] = await spec.spawn(self._home.logs)

    async def _compare(self, sampler: Sampler, trainer: Trainer, context: int) -> None:
        """Raise ``BaseModelError`` if a file that a person brought holds another base than the trainer's."""
        agreement = await compare(sampler, trainer, comparison_tokens(self._renderer, context), self._home.scratch)
        agreement.check(self._tolerance, f"The file {self._settings.rollout.gguf}")

    async def stop(self) -> None:
        """End all workers."""
        handles, self.handles = list(self.handles.values()), {}
        stops = (handle.stop() for handle in handles)
        with contextlib.suppress(ProcessLookupError):
            await asyncio.gather(*stops)
