"""Two real samplers, each a worker process with a core of its own, and tasks that keep asking them.

Which sampler serves which part of a task's groups flows in, seconds until all groups have ended flow out. Turns go the
way that the engine's go: a slot each in fair order, an account, a ledger that learns each task's mix.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from marlaas.engine.base.model import BaseModel
from marlaas.engine.devices.plan import Place, SamplerAssignment, SamplerKind, TrainerAssignment
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.fairness.line import Line, Payer
from marlaas.engine.fleet.placement.limits import memory_plans
from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.fleet.routing.endpoints import SamplerEndpoints, open_endpoint
from marlaas.engine.fleet.worker_specs import sampler_spec, wanted_of
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from marlaas.engine.rollout.endpoint import SamplerEndpoint
from marlaas.engine.rollout.protocol import Sampler, SampleRequest
from marlaas.engine.rollout.replicas import Replicas
from marlaas.engine.rollout.sampler_client import SamplerClient
from marlaas.engine.rollout.seeds import noise_seed
from marlaas.engine.spec.agents import ONLY
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.workers.handle import WorkerHandle

from .other_ways import sampler_of

ASKED = 0.25
"""Seconds between two looks at what the samplers did."""
MEMORY = 4 << 30
"""Bytes that each sampler is planned with, more than it takes."""

Routing: TypeAlias = Callable[[int], Sequence[Share]]
"""The shares of a task by its number; asked anew for each of its steps."""


@dataclass(frozen=True)
class Work:
    """What a task asks for: groups of replies of one length to prompts of one length."""

    spec: TaskSpec
    prompt: int
    """Tokens."""
    reply: int
    """Tokens; nobody stops early."""
    steps: int


class Stage:
    """A rollout stage of two samplers. Call ``close`` at the end."""

    def __init__(self, endpoints: SamplerEndpoints, handles: list[WorkerHandle]) -> None:
        self.endpoints = endpoints
        self._handles = handles
        self.ledger = Ledger()
        self._runs = 0

    @classmethod
    async def start(
        cls, base: BaseModel, home: Home, settings: Settings, kinds: Sequence[SamplerKind], cores: Sequence[int]
    ) -> Stage:
        """Sampler n on core n."""
        handles, endpoints = [], []
        assignments = [
            SamplerAssignment(f"rollout-{number}", kind, Place((core,)))
            for number, (kind, core) in enumerate(zip(kinds, cores, strict=True), 1)
        ]
        trainer = TrainerAssignment("training", Place())
        plans = memory_plans(assignments, [trainer], wanted_of(base, settings, trains=True), MEMORY)
        for assignment, plan in zip(assignments, plans, strict=True):
            handles.append(await sampler_spec(base, home, settings, plan, assignment).spawn(home.logs))
            sampler: Sampler = handles[-1].proxy(Sampler, posted=("release",))
            endpoints.append(open_endpoint(sampler, await sampler.limits(), assignment, "f32", Line()))
        return cls(SamplerEndpoints(endpoints, {}, base), handles)

    async def load(self, version: str, path: str) -> None:
        """Serve a version at both, so that any task may go anywhere."""
        for endpoint in self.endpoints.by_name.values():
            await endpoint.sampler.load(version, path)

    async def run(self, works: Sequence[Work], routing: Routing) -> float:
        """Play all groups of all tasks; returns seconds."""
        self._runs += 1
        asking = asyncio.ensure_future(self._ask())
        began = time.perf_counter()
        try:
            await asyncio.gather(*(self._task(task, work, routing) for task, work in enumerate(works)))
            return time.perf_counter() - began
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def close(self) -> None:
        """End both samplers."""
        await asyncio.gather(*(handle.stop() for handle in self._handles))

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(ASKED)
            await self.endpoints.stats(1.0)

    async def _task(self, task: int, work: Work, routing: Routing) -> None:
        """Step by step: all groups of one at once, as a task without staleness has them."""
        groups, members = work.spec.train.groups_per_step, work.spec.train.group_size
        for step in range(work.steps):
            shares = routing(task)
            episodes = []
            for number in range(step * groups, (step + 1) * groups):
                endpoint = self.endpoints.by_name[sampler_of(shares, number)]
                prompt = np.random.default_rng((self._runs, task, number)).integers(3, 288, work.prompt, np.int32)
                request = SampleRequest("", f"v{task}", prompt, work.reply, 1.0, (), 0)
                for member in range(members):
                    name = f"{self._runs}/{task}/{number}/{member}"
                    own = replace(request, conversation=name, seed=noise_seed(self._runs, task, number, member))
                    episodes.append(self._episode(task, endpoint, own))
            await asyncio.gather(*episodes)

    async def _episode(self, task: int, endpoint: SamplerEndpoint, request: SampleRequest) -> None:
        client = SamplerClient(Replicas((endpoint,)), self.ledger, Payer("bench", task, policy=ONLY), anew=False)
        try:
            await client.generate(request)
        finally:
            client.leave()
            self.ledger.environment(task, 0.0)
