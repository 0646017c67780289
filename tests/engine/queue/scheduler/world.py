"""A home without models, for tests only: the real learner, store and rollout over fake stages.

The adapters of the fake trainer are digests of all that they were trained on, so a wrong lesson never goes unnoticed.

Their latencies are turns of the event loop, drawn from a seed; workers die and engines are replaced at any turn.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import WorkerDied
from marlaas.engine.fairness.line import Ledger, Line
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.routing.assignment import TokenCosts
from marlaas.engine.machine.routing.router import AGAIN, Router, Tolerance
from marlaas.engine.machine.services import Services
from marlaas.engine.machine.supervisor import Preemptible, WorkerSupervisor
from marlaas.engine.machine.trainers import SharedTrainer, TrainerPool
from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.queue.scheduler.scheduler import Ending, Runner, run_task
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import SamplerEndpoint, SamplerSlots
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.spec.automatic import BaseTraits
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.rows import Yielding
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.trainer.protocol import (
    GroupStats,
    Job,
    PolicyConfig,
    Probe,
    Refused,
    StepResult,
    Trainer,
    TrainGroup,
)

from ...rollout.fake import FakeSampler
from ...rollout.fake_renderer import FakeRenderer
from .fake_environments import Chance, FakeEnvironments


class Workers:
    """One incarnation of samplers and trainer, whose loss ends all of them, and every call under way."""

    def __init__(self, chance: Chance, sequences: int, samplers: int, any_order: bool = False) -> None:
        self.any_order = any_order
        self.lost = asyncio.Event()
        self.chance = chance
        self.samplers = {f"rollout-{number}": LossySampler(self, sequences) for number in range(1, samplers + 1)}
        self.trainer = FakeTrainer(self)

    @property
    def sampler(self) -> LossySampler:
        """The only one."""
        (sampler,) = self.samplers.values()
        return sampler

    async def turn(self) -> None:
        await self.chance.wait()
        if self.lost.is_set():
            raise WorkerDied("The worker died.")


class LossySampler(FakeSampler):
    """The fake sampler behind a wire; it may die alone."""

    def __init__(self, workers: Workers, sequences: int) -> None:
        super().__init__(sequences=sequences)
        self._workers = workers
        self.gone = False
        self._coming: dict[str, bool] = {}
        """Conversations whose turn is on its way here, and whether they were released meanwhile: no call overtakes."""

    async def _turn(self) -> None:
        await self._workers.turn()
        if self.gone:
            raise WorkerDied("The sampler died.")

    async def load(self, version: str, path: str) -> str:
        await self._turn()
        return await super().load(version, path)

    async def retire(self, version: str) -> None:
        await super().retire(version)
        await self._turn()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self._coming[request.conversation] = False
        try:
            await self._turn()
        finally:
            released = self._coming.pop(request.conversation)
        if released:
            return self._finish(request, request.tokens, [], "abort")
        result = await super().generate(request, stream_to=stream_to)
        await self._turn()
        return result

    async def release(self, conversation: str) -> None:
        if conversation in self._coming:
            self._coming[conversation] = True
        await super().release(conversation)
        await self._turn()


Adapter = NDArray[np.float32]
UNTRAINED: Adapter = np.zeros((1, 8), np.float32)


def taught(before: Adapter, lessons: Iterable[bytes]) -> Adapter:
    """The adapter after a step: a digest of the one before and of the groups' ``lesson``, in the order of numbers."""
    digest = hashlib.blake2b(before.tobytes(), digest_size=16)
    for one in lessons:
        digest.update(one)
    return np.frombuffer(digest.digest(), np.uint16).astype(np.float32)[None]


def lesson(number: int, sequences: Iterable[tuple[bytes, bytes, bytes, float]]) -> bytes:
    """What a group teaches: its number and each sequence's tokens, mask, log-probabilities and advantage."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=16)
    for tokens, mask, logprobs, advantage in sequences:
        for part in (tokens, mask, logprobs, repr(advantage).encode()):
            digest.update(part)
    return digest.digest()


@dataclass
class FakeTrainer:
    """An adapter is what ``taught`` makes of it. Refuses what a trainer must never be given."""

    workers: Workers
    steps: dict[str, int] = field(default_factory=dict)
    pending: dict[str, dict[int, TrainGroup]] = field(default_factory=dict)
    configs: dict[str, PolicyConfig] = field(default_factory=dict)
    adapters: dict[str, Adapter] = field(default_factory=dict)

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        await self.workers.turn()
        state = read_state(Path(path)) if resume else None
        self.steps[policy] = state.header.step if state else 0
        self.adapters[policy] = state.adapter["m.lora_A"] if state else UNTRAINED
        self.pending[policy], self.configs[policy] = {}, config
        return self._result(policy, Path(path), write=not resume)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        await self.workers.turn()
        assert groups, "a call for nothing"
        numbers = [group.number for group in groups]
        assert len({*numbers, *self.pending[policy]}) == len(numbers) + len(self.pending[policy]), "a group came twice"
        self.pending[policy].update(zip(numbers, groups, strict=True))
        own = {group.number: sum(int(sequence.mask.sum()) for sequence in group.sequences) for group in groups}
        tokens, weights = (
            sum(own.values()),
            {number: np.zeros(count, np.float16) for number, count in own.items() if count},
        )
        wanted = probe.sequences * (1 + probe.before) if probe else ()
        scores = tuple(np.zeros(len(tokens) - start, np.float32) for tokens, start in wanted)
        step = replace(self._step(policy, path), scores=scores) if path else None
        return GroupStats(tokens, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, tokens, weights, step=step)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        return tuple([await self.accumulate(job.policy, job.groups, job.probe, job.path) for job in jobs])

    async def step(self, policy: str, path: str) -> StepResult:
        await self.workers.turn()
        return self._step(policy, path)

    def _step(self, policy: str, path: str) -> StepResult:
        batch = len(self.pending[policy])
        first = self.steps[policy] * batch
        numbers = sorted(self.pending[policy])
        assert self.workers.any_order or numbers == list(range(first, first + batch)), "a step of the wrong groups"
        groups = (self.pending[policy][number] for number in sorted(self.pending[policy]))
        self.adapters[policy] = taught(self.adapters[policy], map(_lesson_of, groups))
        self.pending[policy] = {}
        self.steps[policy] += 1
        return self._result(policy, Path(path), write=True)

    async def close(self, policy: str) -> None:
        await self.workers.turn()
        self.steps.pop(policy, None)

    def _result(self, policy: str, path: Path, write: bool) -> StepResult:
        step, adapter = self.steps[policy], {"m.lora_A": self.adapters[policy]}
        if write:
            write_state(path, PolicyState(StateHeader(1, 1.0, step, "base"), adapter, adapter, adapter), sync=False)
        return StepResult(step, str(path), checksum(adapter), path.stat().st_size, 1.0, 0.0)


NO_FAMILY = BaseModel(
    Path("base"), BaseConfig("none", 8, 8, 1, 1, 1, 8, 10, 2048, 1e-6, 1e4), load_base("tiny").fingerprint
)
"""Its layers are not known; folders of adapters that the tests write are of the shipped base."""


def write_bare(path: Path) -> str:
    """The adapter of a base without one."""
    adapter = {"m.lora_A": UNTRAINED}
    write_state(path, PolicyState(StateHeader(1, 1.0, 0, "base"), adapter), sync=False)
    return checksum(adapter)


def _lesson_of(group: TrainGroup) -> bytes:
    parts = ((s.tokens.tobytes(), s.mask.tobytes(), s.logprobs.tobytes(), s.advantage) for s in group.sequences)
    return lesson(group.number, parts)


class World:
    """One home with a task, and ``others`` beside it; ``go`` runs the task once, ``restart`` replaces the engine."""

    def __init__(
        self,
        root: Path,
        spec: TaskSpec,
        seed: int = 0,
        most: int = 4,
        sequences: int = 16,
        others: Sequence[TaskSpec] = (),
        samplers: int = 1,
    ) -> None:
        self.home = Home(root).create()
        self.spec = spec
        self.chance = Chance(seed, most)
        self.environments = FakeEnvironments(self.chance)
        self.renderer = FakeRenderer()
        self.traits = BaseTraits(160, 1024)
        self.sequences = sequences
        self.samplers = samplers
        self.draining = asyncio.Event()
        self.settling = False
        self.preemptible = Preemptible()
        self.deaths = 0
        self.died = asyncio.Event()
        """Set, and replaced, when anything dies or has a successor."""
        self.checks = 0
        """Times that a task has looked whether it could run."""
        self.store = self._opened()
        self.task, *self.others = submit(self.home.database, [submission(one) for one in (spec, *others)])
        self.replace_workers()

    @property
    def lost(self) -> asyncio.Event:
        """See ``WorkerSupervisor.lost``."""
        return self.workers.lost

    async def reload(self, plugin: str) -> None:
        """See ``WorkerSupervisor.reload``."""

    @property
    def ready(self) -> bool:
        """See ``WorkerSupervisor.ready``."""
        return not self.lost.is_set()

    @property
    def mended(self) -> bool:
        """See ``WorkerSupervisor.mended``."""
        return False

    @property
    def yielding(self) -> Yielding | None:
        """See ``WorkerSupervisor.yielding``."""
        return self.preemptible.yielding

    async def yield_machine(self, yielding: Yielding) -> None:
        """See ``WorkerSupervisor.yield_machine``."""
        self.preemptible.begin(yielding)
        self.lost.set()
        await self.chance.wait()

    def wake(self) -> None:
        """See ``WorkerSupervisor.wake``."""
        self.preemptible.end()
        if self.yielding is None:
            self.replace_workers()

    def shortage(self) -> str:
        """See ``WorkerSupervisor.shortage``: asked before a task that waits for workers may wake them."""
        self.checks += 1
        return ""

    async def services(self) -> Services:
        """See ``WorkerSupervisor.services``."""
        await self.preemptible.wanted()
        while all(endpoint.lost for endpoint in self.endpoints.values()):
            await self.died.wait()
        workers = self.workers
        return Services(
            home=self.home,
            store=self.store,
            environments=cast(EnvironmentService, self.environments),
            rollout=self._rollout,
            endpoints=self.endpoints,
            router=self.router,
            trainers=self.trainers,
            trainer=workers.trainer,
            tolerances={name: Tolerance() for name in self.endpoints},
            traits=self.traits,
            base=NO_FAMILY,
            write_bare=write_bare,
            draining=self.draining,
        )

    def replace_workers(self) -> None:
        """New workers, as after the old ones died."""
        self.workers = Workers(self.chance, self.sequences, self.samplers, self.spec.train.order == "arrival")
        ledger = Ledger()
        self.endpoints = {name: self._endpoint(name) for name in self.workers.samplers}
        every = tuple(self.endpoints.values())
        self.router = Router(every, self._costs, ledger.mixes, count(0.0, AGAIN).__next__)
        self._rollout = Rollout(cast(Renderer, self.renderer), ledger)
        self.trainers = TrainerPool([SharedTrainer(cast(Trainer, self.workers.trainer), Line(), ledger)])

    def _endpoint(self, name: str) -> SamplerEndpoint:
        sampler, slots = self.workers.samplers[name], SamplerSlots(self.sequences, Line(), patience=0.0)
        return SamplerEndpoint(name, "torch", sampler, sampler.context, slots)

    def _costs(self) -> list[TokenCosts]:
        """Other ones whenever the router looks, which is always: tasks move as often as they may."""
        draw = self.chance.random.uniform
        return [TokenCosts(name, draw(1, 9), draw(1, 9)) for name in self.endpoints]

    def kill_workers(self) -> None:
        """Both die and are replaced at once."""
        old = self.workers
        self.replace_workers()
        old.lost.set()
        self._changed(1)

    async def noticed(self, since: int) -> None:
        """See ``WorkerSupervisor.noticed``."""
        while self.deaths <= since:
            await self.died.wait()

    async def lose_sampler(self, turns: int) -> None:
        """One sampler dies alone, and has a successor after so many turns of the event loop."""
        workers, (name, *_) = self.workers, self.chance.random.sample(sorted(self.endpoints), 1)
        workers.samplers[name].gone = self.endpoints[name].lost = True
        self._changed(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        if self.workers is workers:
            workers.samplers[name] = LossySampler(workers, self.sequences)
            self.endpoints[name] = self._endpoint(name)
            self.router.take_in(self.endpoints[name])
            self._changed(0)

    def _changed(self, deaths: int) -> None:
        self.deaths += deaths
        died, self.died = self.died, asyncio.Event()
        died.set()

    def _opened(self) -> Store:
        """A store that is closed when nobody has this world any more."""
        store = Store(self.home.database, "tiny")
        weakref.finalize(self, store.close)
        return store

    def restart(self) -> None:
        """A new engine on the same home."""
        self.store.close()
        self.store = self._opened()
        self.draining = asyncio.Event()
        self.settling = False
        self.preemptible = Preemptible()
        self.replace_workers()

    async def go(self, started: Callable[[Runner], None] = lambda learner: None) -> Ending:
        """Run the task until it ends by itself."""
        return await run_task(self.task, self.spec, cast(WorkerSupervisor, self), started)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the store, as they are."""
        return list(self.store._database.query(sql))
