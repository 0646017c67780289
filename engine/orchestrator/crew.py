"""The rollout and training workers of one engine: started together, watched, and replaced when one dies.

Settings flow in, ``Services`` with live workers flow out. Whoever works with a dead incarnation is told by ``lost``;
tasks then begin again from their last commit with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..base.model import BaseModel
from ..config import Settings
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, WorkerDied
from ..paths import Home
from ..rollout.episodes import Rollout
from ..rollout.protocol import Sampler
from ..rollout.renderer import Renderer
from ..store.store import Store
from ..training.protocol import Trainer
from ..workers.handle import WorkerHandle
from .services import Clock, Services
from .tolerance import tolerance_of

LLAMA = "marlaas.engine.rollout.llama.sampler:LlamaSampler"
TORCH = "marlaas.engine.rollout.torch_sampler.sampler:TorchSampler"
TRAINER = "marlaas.engine.training.torch_trainer:TorchTrainer"
ATTEMPTS = 3
"""At starting workers that die while they start."""
RETRY = 2.0
"""Seconds between attempts to bring dead workers back."""


@dataclass(frozen=True)
class WorkerSpec:
    """How one worker is started."""

    name: str
    factory: str
    kwargs: dict[str, Any]
    cores: tuple[int, ...]


def plan(base: BaseModel, home: Home, settings: Settings) -> tuple[WorkerSpec, WorkerSpec]:
    """Rollout and training, on cores of their own where there are two; one thread for each core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    half = max(1, len(cores) // 2)
    rollout_cores, training_cores = (tuple(cores[:half]), tuple(cores[half:])) if len(cores) > 1 else ((), ())
    rollout = settings.rollout
    sampler: dict[str, Any] = {
        "base": str(base.path),
        "sequences": rollout.sequences or 128,
        "context": min(rollout.context or 512, base.config.context_length),
        "threads": max(1, len(rollout_cores)),
    }
    if rollout.sampler == "llama.cpp":
        sampler |= {"cache": str(home.base), "exact": rollout.exact}
    return (
        WorkerSpec("rollout", LLAMA if rollout.sampler == "llama.cpp" else TORCH, sampler, rollout_cores),
        WorkerSpec(
            "training",
            TRAINER,
            {
                "base": str(base.path),
                "fingerprint": base.fingerprint,
                "threads": max(1, len(training_cores)),
                "sync": settings.training.sync,
            },
            training_cores,
        ),
    )


class Crew:
    """Keeps the workers alive for as long as ``run`` runs."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        base: BaseModel,
        store: Store,
        environments: EnvironmentService,
        busy: Clock,
        log: Callable[[str, str, str], None],
    ) -> None:
        self._home = home
        self._settings = settings
        self._base = base
        self._store = store
        self._environments = environments
        self._busy = busy
        self._log = log
        self._renderer = Renderer(base.path)
        self._services: Services | None = None
        self._ready = asyncio.Event()
        self.handles: dict[str, WorkerHandle] = {}
        self.lost = asyncio.Event()
        """Set when a worker of the current incarnation has died; replaced together with the workers."""

    async def start(self) -> None:
        """Start both workers, again where one is killed meanwhile. Raises what they say if they cannot."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(WorkerDied):
                return await self._start()
        await self._start()

    async def _start(self) -> None:
        specs = plan(self._base, self._home, self._settings)
        started = await asyncio.gather(*(self._spawn(spec) for spec in specs), return_exceptions=True)
        for result in started:
            if isinstance(result, BaseException):
                await self.stop()
                raise result
        sampler: Sampler = self.handles["rollout"].proxy(Sampler, posted=("release",))
        trainer: Trainer = self.handles["training"].proxy(Trainer)
        try:
            limits = await sampler.limits()
        except MarlaasError:
            await self.stop()
            raise
        rollout = Rollout(sampler, self._renderer, limits.sequences, limits.context)
        self._services = Services(
            home=self._home,
            store=self._store,
            environments=self._environments,
            rollout=rollout,
            sampler=sampler,
            trainer=trainer,
            busy=self._busy,
            tolerance=tolerance_of(self._settings.rollout, "f32"),
        )
        self.lost = asyncio.Event()
        self._ready.set()

    def processes(self) -> list[tuple[str, int]]:
        """What each process of this engine is called, and its id: the engine's own, workers', environments'."""
        workers = [(name, handle.pid) for name, handle in self.handles.items()]
        environments = [(f"env {name}", pid) for name, pid in self._environments.processes()]
        return [("engine", os.getpid()), *workers, *environments]

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
            names = [name for name, handle in self.handles.items() if handle.died.is_set()]
            self._ready.clear()
            self._services = None
            self.lost.set()
            self._log("worker", f"The {' and '.join(names)} worker died; a new one takes its place.", "warning")
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

    async def _spawn(self, spec: WorkerSpec) -> None:
        log = self._home.logs / f"{spec.name}.log"
        self.handles[spec.name] = await WorkerHandle.spawn(
            spec.name, spec.factory, spec.kwargs, spec.cores, log_path=log
        )

    async def stop(self) -> None:
        """End all workers."""
        handles, self.handles = list(self.handles.values()), {}
        stops = (handle.stop() for handle in handles)
        with contextlib.suppress(ProcessLookupError):
            await asyncio.gather(*stops)
