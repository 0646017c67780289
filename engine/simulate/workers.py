"""Simulated workers die with their node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ..adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from ..errors import AdapterError, WorkerDied
from ..machine.plan import WorkerSpec
from ..racing import until_first
from ..samplers.protocol import Finish, OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..trainer.protocol import GroupStats, Job as TrainJob, PolicyConfig, Probe, Refused, StepResult, TrainGroup
from ..trajectories import Logprobs, Tokens
from .cluster_file import Network, Site
from .profile import Profile
from .time import EngineTime, Job, Sharing, cores_of

REPLY: ContextVar[int] = ContextVar("reply")
"""Tokens, set when an episode is drawn."""
STOP = 0
ENVELOPE = 512
"""Bytes of a call besides its arrays."""
ARRAYS = 9
"""Bytes of a trained token, mask and log-probability."""
NO_PROCESS = 1 << 22
"""More than Linux gives to processes."""


@dataclass(frozen=True)
class Written:
    """One state file."""

    step: int
    checksum: str


class StateFiles:
    """Real, with a tiny adapter, for recovery, retention and the checker.

    The network carries the recorded size.
    """

    def __init__(self, size: int, fingerprint: str) -> None:
        self.size = size
        self._fingerprint = fingerprint
        self._written: dict[str, Written] = {}
        self._there: set[tuple[str, str]] = set()

    def write(self, policy: str, step: int, config: PolicyConfig, path: str) -> Written:
        digest = blake2b(f"{policy} {step} {path}".encode(), digest_size=16).digest()
        adapter = {"m.lora_A": np.frombuffer(digest, np.uint16).astype(np.float32)[None]}
        header = StateHeader(config.rank, config.alpha, step, self._fingerprint)
        write_state(Path(path), PolicyState(header, adapter, adapter, adapter), sync=False)
        written = self._written[path] = Written(step, checksum(adapter))
        return written

    def get(self, path: str) -> Written:
        """Also of other origin. Raises ``AdapterError``."""
        if path not in self._written:
            state = read_state(Path(path), moments=False)
            self._written[path] = Written(state.header.step, checksum(state.adapter))
        return self._written[path]

    def first(self, node: str, adapter: str) -> bool:
        """True once per node and version."""
        before = len(self._there)
        self._there.add((node, adapter))
        return len(self._there) > before


@dataclass(frozen=True)
class Shared:
    """Common to a simulation's devices."""

    network: Network
    seed: int
    engine: EngineTime
    """Delays requests and answers."""
    profile: Profile
    states: StateFiles
    cores: Mapping[str, Sharing]


class Device:
    """A worker's, reached over the network."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        self.name = name
        self.node = site.node
        self.dead = False
        self._speed = site.speed
        self._shared = shared
        self._states = shared.states
        self._threads = max(1, site.threads)
        self._cores = shared.cores[site.node] if site.threads else cores_of(self._threads)
        self._clock = Sharing(lambda _: 1.0)
        self._random = Random(f"{shared.seed}/{name}")
        self._jobs: set[Job] = set()

    def death(self) -> WorkerDied:
        return WorkerDied(f"Worker {self.name} died with its node {self.node}.")

    def die(self) -> None:
        self.dead = True
        for job in self._jobs:
            if not job.over.done():
                job.over.set_exception(self.death())

    async def until(self, device: Sharing, amount: float, threads: int = 1) -> None:
        """Raises ``WorkerDied`` if the worker is dead, or dies before."""
        self.check()
        await self._over(device, device.begin(amount, threads))

    async def _over(self, device: Sharing, job: Job) -> None:
        self._jobs.add(job)
        try:
            await job.over
        finally:
            self._jobs.discard(job)
            device.stop(job)

    async def rest(self, seconds: float) -> None:
        if seconds > 0:
            await self.until(self._clock, seconds)

    async def carry(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        await self.rest(self._shared.network.seconds(self.node, size, now))

    def check(self) -> None:
        if self.dead:
            raise self.death()

    def draw(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else self._random.choice(values)


class SimulatedSampler(Device):
    """Conversations share passes, reading delays all. Replies have recorded lengths."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        rates = self._rates = shared.profile.sampler
        self._passes = Sharing(
            lambda rows: site.speed / max(1e-12, rates.a_pass + rows * rates.row), (self._cores, self._threads)
        )
        self._limits = SamplerLimits(site.sequences, site.context)
        self._versions: dict[str, str] = {}
        self._held: dict[str, tuple[int, tuple[str, bytes]]] = {}
        """Each conversation's remembered tokens, and the version and prompt of its beginning."""
        self._prompts: Counter[tuple[str, bytes]] = Counter()
        self._running: dict[str, Job] = {}
        self._loaded = 0.0
        """The time until which versions are loaded."""
        self._sampled = self._prefilled = 0

    async def limits(self) -> SamplerLimits:
        return self._limits

    async def load(self, version: str, path: str) -> str:
        state = self._states.get(path)
        if self._states.first(self.node, state.checksum):
            await self.carry(self._states.size)
        seconds, now = self.draw(self._shared.profile.publish), asyncio.get_running_loop().time()
        self._passes.stall(seconds, busy=False)
        self._loaded = max(self._loaded, now) + seconds
        await self.rest(self._loaded - now)
        self._versions[version] = state.checksum
        return state.checksum

    async def retire(self, version: str) -> None:
        self._versions.pop(version, None)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        checksum = self._serving(request.version)
        context, conversation = len(request.tokens), request.conversation
        await self._shared.engine.ask()
        await self.carry(ENVELOPE + 4 * context)
        requested = max(1, min(REPLY.get(request.max_tokens), request.max_tokens, self._limits.context - context))
        remembered, opened = self._held.get(conversation, (0, (request.version, b"")))
        if not remembered:  # a prompt that another one holds is read once
            opened = request.version, request.tokens.tobytes()
            remembered = context - 1 if self._prompts[opened] else 0
            self._prompts[opened] += 1
        read = context - remembered
        self._held[conversation] = context + requested, opened
        self.check()
        self._passes.stall((self._rates.turn + read * self._rates.read) / self._speed)
        job = self._running[conversation] = self._passes.begin(requested)
        try:
            await self._over(self._passes, job)
        finally:
            self._running.pop(conversation, None)
        made = min(requested, max(0, int(job.end - job.begun + 1e-6)))
        self._sampled += made
        self._prefilled += read
        await self.rest(self.draw(self._rates.around))
        await self.carry(ENVELOPE + 8 * made)
        self._shared.engine.answer()
        tokens = np.ones(made, np.int32)
        tokens[:1] = 2 + self._random.getrandbits(16)
        finish: Finish = "abort" if made < requested else "stop" if made < request.max_tokens else "length"
        if finish == "stop":
            tokens[-1] = STOP
        return SampleResult(tokens, np.zeros(made, np.float32), finish, request.version, checksum, read)

    async def release(self, conversation: str) -> None:
        if held := self._held.pop(conversation, None):
            self._prompts -= Counter([held[1]])
        if (job := self._running.get(conversation)) is not None and not job.over.done():
            self._passes.stop(job)
            job.end = min(job.end, self._passes.progress)

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """All 0, as the trainer's."""
        self._serving(version)
        await self.carry(ENVELOPE + 4 * len(tokens))
        await self.rest(self._passes.stall(len(tokens) * self._rates.read / self._speed))
        await self.carry(ENVELOPE + 4 * len(tokens))
        return np.zeros(len(tokens) - start, np.float32)

    async def stats(self) -> SamplerStats:
        self._passes.wake()
        passes = self._passes
        return SamplerStats(self._sampled, self._prefilled, passes.busy, len(passes), 0, int(passes.progress))

    def _serving(self, version: str) -> str:
        self.check()
        if version not in self._versions:
            raise AdapterError(f"The version {version!r} is not served.")
        return self._versions[version]


@dataclass
class OpenPolicy:
    """Its settings, steps, and the groups for the next step."""

    config: PolicyConfig
    steps: int
    pending: list[int] = field(default_factory=list)


class SimulatedTrainer(Device):
    """Groups take time by their tokens. Repeated or wrong groups raise ``AdapterError``."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        self._rates = shared.profile.trainer
        self._turn = asyncio.Lock()
        self._policies: dict[str, OpenPolicy] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        state = self._states.get(path) if resume else None
        await self.carry(self._states.size)
        seconds = await self._compute(self.draw(self._rates.update))
        written = state or self._states.write(policy, 0, config, path)
        self._policies[policy] = OpenPolicy(config, written.step)
        self._shared.engine.call()
        return self._result(written, path, seconds)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        return (await self._pass((TrainJob(policy, groups, probe, path),)))[0]

    async def accumulate_together(self, jobs: tuple[TrainJob, ...]) -> tuple[GroupStats | Refused, ...]:
        return tuple(await self._pass(jobs))

    async def _pass(self, jobs: tuple[TrainJob, ...]) -> list[GroupStats]:
        states = [self._open(job.policy) for job in jobs]
        for state, job in zip(states, jobs, strict=True):
            numbers = [*state.pending, *(group.number for group in job.groups)]
            if len(set(numbers)) < len(numbers):
                raise AdapterError(f"A group of {job.policy} came twice: {sorted(numbers)}.")
        tokens = [sum(map(_tokens, job.groups)) for job in jobs]
        await self.carry(ENVELOPE + ARRAYS * sum(tokens))
        seconds = await self._compute(self._seconds([group for job in jobs for group in job.groups]))
        await self.carry(ENVELOPE)
        results = []
        for state, job, length in zip(states, jobs, tokens, strict=True):
            state.pending += [group.number for group in job.groups]
            stats = _stats(job, seconds * length / max(1, sum(tokens)))
            results.append(
                replace(stats, step=await self._step(job.policy, job.path, job.probe)) if job.path else stats
            )
            self._shared.engine.call()
        return results

    async def step(self, policy: str, path: str) -> StepResult:
        result = await self._step(policy, path)
        self._shared.engine.call()
        return result

    async def _step(self, policy: str, path: str, probe: Probe | None = None) -> StepResult:
        state = self._open(policy)
        first, count = state.steps * len(state.pending), len(state.pending)
        if sorted(state.pending) != list(range(first, first + count)):
            raise AdapterError(f"Step {state.steps + 1} of {policy} has the wrong groups: {sorted(state.pending)}.")
        seconds = await self._compute(self.draw(self._rates.update))
        await self.carry(self._states.size)
        state.pending.clear()
        state.steps += 1
        result = self._result(self._states.write(policy, state.steps, state.config, path), path, seconds)
        sequences = probe.sequences * (1 + probe.before) if probe else ()
        return replace(result, scores=tuple(np.zeros(len(read) - start, np.float32) for read, start in sequences))

    async def close(self, policy: str) -> None:
        self._policies.pop(policy, None)

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        await self._compute(self._rates.token * len(tokens))
        return np.zeros(len(tokens) - start, np.float32)

    async def get_state(self, policy: str) -> Any:
        """A training state is three times its adapter's part of the file; it travels."""
        state = deepcopy(self._open(policy))
        await self.carry(self._states.size)
        return state

    async def set_state(self, policy: str, moved: Any) -> None:
        await self.carry(self._states.size)
        self._policies[policy] = moved

    async def _compute(self, seconds: float) -> float:
        """At the recorded speed, after all before; returns simulated seconds."""
        self.check()
        if seconds <= 0:
            return 0.0
        async with self._turn:
            began = asyncio.get_running_loop().time()
            await self.until(self._cores, seconds / self._speed, self._threads)
            return asyncio.get_running_loop().time() - began

    def _open(self, policy: str) -> OpenPolicy:
        self.check()
        if policy not in self._policies:
            raise AdapterError(f"The policy {policy!r} is not open.")
        return self._policies[policy]

    def _seconds(self, groups: Sequence[TrainGroup]) -> float:
        rates = self._rates
        passed = [group for group in groups if any(sequence.advantage for sequence in group.sequences)]
        if not passed:
            return 0.0
        mean = rates.a_pass + len(passed) * rates.group + rates.token * sum(map(_tokens, passed))
        return mean * self.draw(rates.noise)

    def _result(self, written: Written, path: str, seconds: float) -> StepResult:
        return StepResult(written.step, path, written.checksum, self._states.size, 1.0, seconds)


def _tokens(group: TrainGroup) -> int:
    return sum(len(sequence.tokens) for sequence in group.sequences)


def _stats(job: TrainJob, seconds: float) -> GroupStats:
    counts = {group.number: sum(int(each.mask.sum()) for each in group.sequences) for group in job.groups}
    tokens = sum(counts.values())
    weights = {number: np.zeros(count, np.float16) for number, count in counts.items() if count}
    return GroupStats(tokens, 0.0, 0.0, 0, 0.0, 0.0, 0.0, seconds, tokens, weights)


class SimulatedHandle:
    """The used part of ``workers.WorkerHandle``."""

    node = ""

    def __init__(self, name: str, pid: int, device: Device) -> None:
        self.name = name
        self.pid = pid
        self.device = device
        self.death = device.death
        self.died = asyncio.Event()

    def proxy(self, protocol: Any, posted: Collection[str] = (), part: str = "") -> Any:
        return self.device

    def die(self) -> None:
        self.device.die()
        self.died.set()


class SimulatedWorkers:
    """They start together, and die with their node."""

    def __init__(self, make: Callable[[str], Device], start: float) -> None:
        """``make`` a device by the worker's name; raises ``WorkerDied`` if its node is away."""
        self._make = make
        self._start = start
        self._pids = count(NO_PROCESS)
        self.handles: dict[str, SimulatedHandle] = {}
        self.cards: frozenset[str] = frozenset()
        self.starts = 0
        self.busy: dict[str, float] = {}

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        self.starts += 1
        await asyncio.sleep(self._start)
        for spec in specs:
            self._begin(spec.name)

    async def start_again(self, spec: WorkerSpec) -> None:
        await asyncio.sleep(self._start)
        self._begin(spec.name)

    def _begin(self, name: str) -> None:
        self.handles[name] = SimulatedHandle(name, next(self._pids), self._make(name))

    def forget(self, name: str) -> None:
        self.handles.pop(name).die()

    async def until_death(self, *others: asyncio.Event) -> Mapping[str, WorkerDied]:
        ends = [*others, *(handle.died for handle in self.handles.values())]
        await until_first(*(end.wait() for end in ends))
        return {name: handle.death() for name, handle in self.handles.items() if handle.died.is_set()}

    async def stop(self) -> None:
        handles, self.handles = self.handles, {}
        for handle in handles.values():
            handle.die()

    def lose(self, node: str) -> None:
        for handle in self.handles.values():
            if handle.device.node == node:
                handle.die()
