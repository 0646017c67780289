"""Simulated workers: samplers and trainers that take as long as recorded ones, and die with their node."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

from ..adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from ..errors import AdapterError, WorkerDied
from ..machine.plan import WorkerSpec
from ..racing import until_first
from ..samplers.protocol import Finish, OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, TrainGroup
from ..trajectories import Logprobs, Tokens
from .cluster_file import Network, Site
from .profile import Profile
from .time import Cores, EngineTime, Process, VirtualLoop

# State files of a simulation: real ones with a tiny adapter, for recovery, retention and the checker.
#
# On the network they have the recorded size.


@dataclass(frozen=True)
class Written:
    """One state file."""

    step: int
    checksum: str
    size: int


class StateFiles:
    """All state files of one simulation."""

    def __init__(self, size: int, fingerprint: str) -> None:
        self.size = size
        self._fingerprint = fingerprint
        self._known: dict[str, Written] = {}
        self._there: set[tuple[str, str]] = set()

    def write(self, policy: str, step: int, config: PolicyConfig, path: str) -> Written:
        digest = blake2b(f"{policy} {step} {path}".encode(), digest_size=16).digest()
        adapter = {"m.lora_A": np.frombuffer(digest, np.uint16).astype(np.float32)[None]}
        header = StateHeader(config.rank, config.alpha, step, self._fingerprint)
        write_state(Path(path), PolicyState(header, adapter, adapter, adapter), sync=False)
        written = self._known[path] = Written(step, checksum(adapter), self.size)
        return written

    def get(self, path: str) -> Written:
        """The state file at a path, perhaps written by other means. Raises ``AdapterError``."""
        known = self._known.get(path)
        if known is None:
            state = read_state(Path(path), moments=False)
            known = self._known[path] = Written(state.header.step, checksum(state.adapter), self.size)
        return known

    def first(self, node: str, adapter: str) -> bool:
        """True once for each node and version."""
        if (node, adapter) in self._there:
            return False
        self._there.add((node, adapter))
        return True


# A device of a simulation: it takes time, and may die in the middle of it.

T = TypeVar("T")


@dataclass(frozen=True)
class Shared:
    """Common objects of all devices of a simulation."""

    network: Network
    seed: int
    engine: EngineTime
    """Delays the engine's requests and answers."""
    profile: Profile
    states: StateFiles
    cores: Mapping[str, Cores]


class Device:
    """A simulated worker's device on a node, reached over the network."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        self.name = name
        self.node = site.node
        self.speed = site.speed
        self.engine = shared.engine
        self._network = shared.network
        self._states = shared.states
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self.threads = max(1, site.threads)
        self.cores = shared.cores[site.node] if site.threads else Cores(loop)
        self._random = Random(f"{shared.seed}/{name}")
        self._waits: set[asyncio.Future[Any]] = set()
        self.dead = False

    def death(self) -> WorkerDied:
        return WorkerDied(f"Worker {self.name} died with its node {self.node}.")

    def die(self) -> None:
        self.dead = True
        for wait in self._waits:
            if not wait.done():
                wait.set_exception(self.death())
        self._waits.clear()

    async def rest(self, seconds: float) -> None:
        """Let this many seconds pass; raises ``WorkerDied`` if the device dies meanwhile."""
        if self.dead:
            raise self.death()
        if seconds > 0:
            wait = self._loop.create_future()
            timer = self._loop.call_later(seconds, _done, wait)
            await self.until(wait)
            timer.cancel()

    async def until(self, wait: asyncio.Future[T]) -> T:
        """Wait for something that happens here; raises ``WorkerDied`` if the device dies before."""
        self._waits.add(wait)
        try:
            return await wait
        finally:
            self._waits.discard(wait)

    async def carry(self, size: int) -> None:
        await self.rest(self._network.seconds(self.node, size, self._loop.time()))

    def draw(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else self._random.choice(values)


def _done(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)


# A simulated sampler: conversations share passes, prompts are read in between, and replies have recorded lengths.
#
# A pass over n conversations takes ``a_pass + n * row`` seconds and adds a token to each; reading delays all of them.

REPLY: ContextVar[int] = ContextVar("reply")
"""Tokens of the requested reply, set by the code that draws the episode."""
STOP = 0
ENVELOPE = 512
"""Bytes of a call or an answer besides its arrays."""
ROUNDING = 1e-9


class _Row:
    """A turn in progress: it ends when the sampler's count of tokens per conversation reaches ``end``."""

    __slots__ = ("begun", "end", "wait")

    def __init__(self, begun: float, end: float, wait: asyncio.Future[None]) -> None:
        self.begun = begun
        self.end = end
        self.wait = wait


class SimulatedSampler(Device):
    """``rollout.Sampler`` without a model."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        rates, speed = shared.profile.sampler, site.speed
        self._pass, self._row = rates.a_pass / speed, rates.row / speed
        self._read, self._turn = rates.read / speed, rates.turn / speed
        self._around = rates.around
        self._publish = shared.profile.publish
        self._limits = SamplerLimits(site.sequences, site.context)
        self._versions: dict[str, str] = {}
        self._held: dict[str, tuple[int, tuple[str, bytes]]] = {}
        """Each conversation's remembered tokens, and the version and prompt of its beginning."""
        self._prompts: Counter[tuple[str, bytes]] = Counter()
        self._rows: list[tuple[float, int, _Row]] = []
        self._numbers = count()
        self._running: dict[str, _Row] = {}
        self._made = 0.0
        """Tokens added to each conversation in progress since the start."""
        self._debt = 0.0
        """Remaining seconds of reading."""
        self._loading = 0.0
        """Remaining seconds of loading versions, which delay the work and do not count as busy."""
        self._seen = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._awake = False
        self._sampled = self._prefilled = 0
        self._busy = 0.0

    async def limits(self) -> SamplerLimits:
        return self._limits

    async def load(self, version: str, path: str) -> str:
        state = self._states.get(path)
        if self._states.first(self.node, state.checksum):
            await self.carry(state.size)
        self._advance()
        self._loading += self.draw(self._publish)
        self._arm()
        await self.rest(self._loading)
        self._versions[version] = state.checksum
        return state.checksum

    async def retire(self, version: str) -> None:
        self._versions.pop(version, None)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        checksum = self._serving(request.version)
        context = len(request.tokens)
        await self.engine.ask()
        await self.carry(ENVELOPE + 4 * context)
        wanted = max(1, min(REPLY.get(request.max_tokens), request.max_tokens, self._limits.context - context))
        known, opened = self._held.get(request.conversation, (0, (request.version, b"")))
        if not known:
            opened = request.version, request.tokens.tobytes()
            known = context - 1 if self._prompts[opened] else 0
            self._prompts[opened] += 1
        read = context - known
        row = self._begin(self._turn + read * self._read, wanted)
        self._held[request.conversation] = context + wanted, opened
        self._running[request.conversation] = row
        try:
            await self.until(row.wait)
        finally:
            self._running.pop(request.conversation, None)
        made = wanted if row.end <= self._made + ROUNDING else max(0, int(self._made - row.begun))
        self._sampled += made
        self._prefilled += read
        await self.rest(self.draw(self._around))
        await self.carry(ENVELOPE + 8 * made)
        self.engine.answer()
        tokens = np.ones(made, np.int32)
        tokens[:1] = 2 + self._random.getrandbits(16)
        ended = made == wanted
        if ended and wanted < request.max_tokens:
            tokens[-1] = STOP
        finish: Finish = "abort" if not ended else "stop" if wanted < request.max_tokens else "length"
        return SampleResult(tokens, np.zeros(made, np.float32), finish, request.version, checksum, read)

    async def release(self, conversation: str) -> None:
        held = self._held.pop(conversation, None)
        if held is not None:
            self._prompts[held[1]] -= 1
            if self._prompts[held[1]] <= 0:
                del self._prompts[held[1]]
        row = self._running.get(conversation)
        if row is not None and not row.wait.done():
            self._advance()
            row.wait.set_result(None)
            self._rows = [one for one in self._rows if one[2] is not row]
            heapq.heapify(self._rows)
            self._arm()

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """All log-probabilities are 0, as the trainer's are."""
        self._serving(version)
        await self.carry(ENVELOPE + 4 * len(tokens))
        await self.until(self._begin(len(tokens) * self._read, 0).wait)
        await self.carry(ENVELOPE + 4 * len(tokens))
        return np.zeros(len(tokens) - start, np.float32)

    async def stats(self) -> SamplerStats:
        self._advance()
        return SamplerStats(self._sampled, self._prefilled, self._busy, len(self._rows), 0, int(self._made))

    def die(self) -> None:
        super().die()
        if self._timer is not None:
            self._timer.cancel()
        self._rows.clear()
        self._wakes()

    def _serving(self, version: str) -> str:
        if self.dead:
            raise self.death()
        if version not in self._versions:
            raise AdapterError(f"The version {version!r} is not served.")
        return self._versions[version]

    def _begin(self, reading: float, wanted: int) -> _Row:
        if self.dead:
            raise self.death()
        self._advance()
        self._debt += reading
        row = _Row(self._made, self._made + wanted, self._loop.create_future())
        heapq.heappush(self._rows, (row.end, next(self._numbers), row))
        self._arm()
        return row

    def _advance(self) -> None:
        now = self._loop.time()
        passed, self._seen = now - self._seen, now
        loaded = min(passed, self._loading)
        self._loading -= loaded
        passed -= loaded
        read = min(passed, self._debt)
        self._debt -= read
        self._busy += read
        passed -= read
        while self._rows and self._debt <= ROUNDING:
            each = self._pass + len(self._rows) * self._row
            left = max(0.0, self._rows[0][0] - self._made)
            if each * left > passed + ROUNDING:
                self._made += passed / each
                self._busy += passed
                return
            self._made = max(self._made, self._rows[0][0])
            self._busy += each * left
            passed = max(0.0, passed - each * left)
            self._end_first()

    def _end_first(self) -> None:
        row = heapq.heappop(self._rows)[2]
        if not row.wait.done():
            row.wait.set_result(None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._rows:
            left = max(0.0, self._rows[0][0] - self._made)
            each = self._pass + len(self._rows) * self._row
            self._timer = self._loop.call_later(self._loading + self._debt + left * each, self._wake)
        self._wakes()

    def _wakes(self) -> None:
        if self._awake != bool(self._rows):
            self._awake = bool(self._rows)
            self.cores.wake(self.threads if self._awake else -self.threads)

    def _wake(self) -> None:
        self._timer = None
        self._advance()
        self._arm()


# A simulated trainer: groups take time by their tokens, and adapters are digests of their names.

ARRAYS = 9
"""Bytes of a token with its mask and its log-probability."""


@dataclass
class _Open:
    config: PolicyConfig
    step: int
    pending: list[int] = field(default_factory=list)


class SimulatedTrainer(Device):
    """``training.Trainer`` without a model. Refuses invalid input."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        self._rates = shared.profile.trainer
        self._process = Process(self.cores, self.threads)
        self._policies: dict[str, _Open] = {}

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        state = self._states.get(path) if resume else None
        await self.carry(self._states.size)
        seconds = await self._compute(self._update())
        self._policies[policy] = _Open(config, state.step if state else 0)
        self.engine.call()
        return self._result(state or self._states.write(policy, 0, config, path), path, seconds)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        return (await self._pass((Job(policy, groups, probe, path),)))[0]

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        return tuple(await self._pass(jobs))

    async def _pass(self, jobs: tuple[Job, ...]) -> list[GroupStats]:
        known = [self._known(job.policy) for job in jobs]
        for own, job in zip(known, jobs, strict=True):
            numbers = [group.number for group in job.groups]
            if len({*numbers, *own.pending}) < len(numbers) + len(own.pending):
                raise AdapterError(f"A group of {job.policy} came twice.")
        tokens = [sum(map(_tokens, job.groups)) for job in jobs]
        await self.carry(ENVELOPE + ARRAYS * sum(tokens))
        seconds = await self._compute(self._seconds([group for job in jobs for group in job.groups]))
        total = max(1, sum(tokens))
        await self.carry(ENVELOPE)
        taken = [
            self._taken(own, job.groups, job.probe, seconds * count / total)
            for own, job, count in zip(known, jobs, tokens, strict=True)
        ]
        found = []
        for stats, job in zip(taken, jobs, strict=True):
            found.append(replace(stats, step=await self._step(job.policy, job.path)) if job.path else stats)
            self.engine.call()
        return found

    async def step(self, policy: str, path: str) -> StepResult:
        made = await self._step(policy, path)
        self.engine.call()
        return made

    async def _step(self, policy: str, path: str) -> StepResult:
        known = self._known(policy)
        batch = len(known.pending)
        first = known.step * batch
        if sorted(known.pending) != list(range(first, first + batch)):
            raise AdapterError(f"A step of {policy} has the wrong groups: {sorted(known.pending)}.")
        seconds = await self._compute(self._update())
        await self.carry(self._states.size)
        known.pending.clear()
        known.step += 1
        return self._result(self._states.write(policy, known.step, known.config, path), path, seconds)

    async def close(self, policy: str) -> None:
        self._policies.pop(policy, None)

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        await self._compute(self._rates.token * len(tokens) / self.speed)
        return np.zeros(len(tokens) - start, np.float32)

    async def get_state(self, policy: str) -> Any:
        """A training state is three times as large as its adapter's part of the file; it travels."""
        known = self._known(policy)
        await self.carry(self._states.size)
        return known

    async def set_state(self, policy: str, moved: Any) -> None:
        await self.carry(self._states.size)
        self._policies[policy] = _Open(moved.config, moved.step, list(moved.pending))

    def die(self) -> None:
        super().die()
        self._process.end()

    async def _compute(self, seconds: float) -> float:
        if self.dead:
            raise self.death()
        return await self.until(self._process.compute(seconds))

    def _known(self, policy: str) -> _Open:
        if self.dead:
            raise self.death()
        if policy not in self._policies:
            raise AdapterError(f"The policy {policy!r} is not open.")
        return self._policies[policy]

    def _seconds(self, groups: Sequence[TrainGroup]) -> float:
        rates = self._rates
        passed = [group for group in groups if any(sequence.advantage for sequence in group.sequences)]
        if not passed:
            return 0.0
        mean = rates.a_pass + len(passed) * rates.group + rates.token * sum(map(_tokens, passed))
        return mean * self.draw(rates.noise) / self.speed

    def _update(self) -> float:
        return self.draw(self._rates.update) / self.speed

    def _taken(self, known: _Open, groups: tuple[TrainGroup, ...], probe: Probe | None, seconds: float) -> GroupStats:
        known.pending += [group.number for group in groups]
        own = {group.number: sum(int(each.mask.sum()) for each in group.sequences) for group in groups}
        tokens = sum(own.values())
        weights = {number: np.zeros(count, np.float16) for number, count in own.items() if count}
        wanted = probe.sequences if probe else ()
        scores = tuple(np.zeros(len(read) - start, np.float32) for read, start in wanted)
        sums = (0.0, 0.0, 0, 0.0, 0.0, 0.0)
        return GroupStats(tokens, *sums, seconds, tokens, weights, scores=scores)

    def _result(self, written: Written, path: str, seconds: float) -> StepResult:
        return StepResult(written.step, path, written.checksum, written.size, 1.0, seconds)


def _tokens(group: TrainGroup) -> int:
    return sum(len(sequence.tokens) for sequence in group.sequences)


# The workers of a simulation in place of processes: started together, called as such, and dead with their node.

NO_PROCESS = 1 << 22
"""First id for simulated workers: more than Linux gives to processes."""

Make = Callable[[str], Device]
"""Makes the device of the worker of that name. Raises ``WorkerDied`` if its node is away."""


class SimulatedHandle:
    """The used part of ``workers.WorkerHandle``."""

    def __init__(self, name: str, pid: int, device: Device) -> None:
        self.name = name
        self.pid = pid
        self.device = device
        self.node = ""
        self.died = asyncio.Event()

    def proxy(self, protocol: Any, posted: Collection[str] = (), part: str = "") -> Any:
        return self.device

    def death(self) -> WorkerDied:
        return self.device.death()

    def die(self) -> None:
        self.device.die()
        self.died.set()


class SimulatedWorkers:
    """The used part of ``WorkerProcesses``."""

    def __init__(self, make: Make, start: float) -> None:
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
        handles, self.handles = list(self.handles.values()), {}
        for handle in handles:
            handle.die()

    def lose(self, node: str) -> None:
        for handle in self.handles.values():
            if handle.device.node == node:
                handle.die()
