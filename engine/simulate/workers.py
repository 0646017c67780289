"""Simulated workers: they take recorded times, and die with their node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from marlaas.plugins.messages import Answer, Ask, Message

from ..adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from ..environments.outcomes import OutcomeCounts
from ..environments.protocol import DataFacts, EnvironmentInfo, EpisodeOutcome, EpisodeSpec, Opens
from ..errors import AdapterError, EnvironmentMissing, WorkerDied
from ..machine.plan import WorkerSpec
from ..machine.supervisor import WorkerProcesses
from ..machine.workers.handle import WorkerHandle
from ..rollout.renderer import Continuation, Opening, Said
from ..rollout.spoken import Spoken
from ..samplers.protocol import Finish, OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, TrainGroup
from ..trajectories import Failure, Logprobs, Tokens
from .cluster_file import Profile, RecordedEnvironment, RecordedEpisode, RecordedTurn, Site, config_key

REPLY: ContextVar[int] = ContextVar("reply")
"""Tokens, set when an episode is drawn."""
STOP = 0
START = 10.0
"""Seconds of a worker's start."""
ENVELOPE = 512
"""Bytes of a call besides its arrays."""
ARRAYS = 9
"""Bytes of a trained token, mask and log-probability."""


@dataclass
class Shared:
    """Common to a simulation's devices."""

    seed: int
    profile: Profile
    fingerprint: str
    """Of the base."""
    sent: int = 0
    """Bytes over all links."""
    brought: set[tuple[str, str]] = field(default_factory=set)
    """Node and checksum of each version that has travelled."""


class Device:
    """A worker's, reached over its node's link."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        self.name = name
        self.site = site
        self.died = asyncio.Event()
        self._shared = shared
        self._profile = shared.profile
        self._random = Random(f"{shared.seed}/{name}")

    def death(self) -> WorkerDied:
        return WorkerDied(f"Worker {self.name} died with its node {self.site.node}.")

    def check(self) -> None:
        if self.died.is_set():
            raise self.death()

    async def rest(self, seconds: float) -> None:
        """Raises ``WorkerDied`` if the worker has died by then."""
        if seconds > 0:
            await asyncio.sleep(seconds)
        self.check()

    async def carry(self, size: int) -> None:
        """Over the link; each message has all of its bandwidth."""
        if self.site.link.call or self.site.link.byte:
            self._shared.sent += size
            await self.rest(self.site.link.call / 2 + self.site.link.byte * size)

    async def carry_state(self) -> None:
        await self.carry(self._profile.state_bytes)

    def draw(self, values: Sequence[float]) -> float:
        return values[0] if len(values) == 1 else self._random.choice(values)


class SimulatedSampler(Device):
    """Replies have recorded lengths.

    A pass adds a token to each running conversation. A reply takes as long as if their number stayed what it is at its
    begin. Prompts are read, and versions loaded, one after the other.
    """

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        self._rates = shared.profile.sampler
        self._reading = asyncio.Lock()
        self._versions: dict[str, str] = {}
        self._held: dict[str, tuple[int, tuple[str, bytes]]] = {}
        """Each conversation's remembered tokens, and the version and prompt of its beginning."""
        self._prompts: Counter[tuple[str, bytes]] = Counter()
        self._running = self._sampled = self._prefilled = 0
        self._busy = self._passes = 0.0

    async def limits(self) -> SamplerLimits:
        return SamplerLimits(self.site.sequences, self.site.context)

    async def load(self, version: str, path: str) -> str:
        digest = checksum(read_state(Path(path), moments=False).adapter)
        if (self.site.node, digest) not in self._shared.brought:
            self._shared.brought.add((self.site.node, digest))
            await self.carry_state()
        async with self._reading:
            await self.rest(self.draw(self._profile.publish))
        self._versions[version] = digest
        return digest

    async def retire(self, version: str) -> None:
        self._versions.pop(version, None)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        digest = self._serving(request.version)
        context, conversation = len(request.tokens), request.conversation
        await self.carry(ENVELOPE + 4 * context)
        made = max(1, min(REPLY.get(request.max_tokens), request.max_tokens, self.site.context - context))
        remembered, opened = self._held.get(conversation, (0, (request.version, b"")))
        if not remembered:  # a prompt that another one holds is read once
            opened = request.version, request.tokens.tobytes()
            remembered = context - 1 if self._prompts[opened] else 0
            self._prompts[opened] += 1
        self._held[conversation] = context + made, opened
        self._running += 1
        try:
            await self._read(context - remembered, self._rates.turn)
            passes = self._rates.a_pass + self._running * self._rates.row
            seconds = made * passes / self.site.speed
            self._busy += seconds / self._running
            self._passes += made / self._running
            await self.rest(seconds)
        finally:
            self._running -= 1
        self._sampled += made
        await self.rest(self.draw(self._rates.around))
        await self.carry(ENVELOPE + 8 * made)
        tokens = np.ones(made, np.int32)
        tokens[:1] = 2 + self._random.getrandbits(16)
        stops = made < request.max_tokens
        if stops:
            tokens[-1] = STOP
        finish: Finish = "stop" if stops else "length"
        logprobs = np.zeros(made, np.float32)
        return SampleResult(tokens, logprobs, finish, request.version, digest, context - remembered)

    async def release(self, conversation: str) -> None:
        if held := self._held.pop(conversation, None):
            self._prompts -= Counter([held[1]])

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """All 0, as the trainer's."""
        self._serving(version)
        await self.carry(ENVELOPE + 4 * len(tokens))
        await self._read(len(tokens))
        await self.carry(ENVELOPE + 4 * len(tokens))
        return np.zeros(len(tokens) - start, np.float32)

    async def stats(self) -> SamplerStats:
        return SamplerStats(self._sampled, self._prefilled, self._busy, self._running, 0, int(self._passes))

    async def _read(self, tokens: int, further: float = 0.0) -> None:
        """``further`` recorded seconds come on top."""
        seconds = (further + tokens * self._rates.read) / self.site.speed
        async with self._reading:
            await self.rest(seconds)
        self._busy += seconds
        self._prefilled += tokens

    def _serving(self, version: str) -> str:
        self.check()
        if version not in self._versions:
            raise AdapterError(f"The version {version!r} is not served.")
        return self._versions[version]


class SimulatedTrainer(Device):
    """Groups take time by their tokens, one call after the other."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        self._rates = shared.profile.trainer
        self._turn = asyncio.Lock()
        self._policies: dict[str, tuple[PolicyConfig, int]] = {}
        """Settings and steps."""

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        step = read_state(Path(path), moments=False).header.step if resume else 0
        await self.carry_state()
        seconds = await self._compute(self.draw(self._rates.update))
        self._policies[policy] = config, step
        return self._result(path, step, seconds) if resume else self._written(policy, path, seconds)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        (stats,) = await self.accumulate_together((Job(policy, groups, probe, path),))
        return cast(GroupStats, stats)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        tokens = [sum(map(_tokens, job.groups)) for job in jobs]
        await self.carry(ENVELOPE + ARRAYS * sum(tokens))
        seconds = await self._compute(self._seconds([group for job in jobs for group in job.groups]))
        await self.carry(ENVELOPE)
        results = []
        for job, length in zip(jobs, tokens, strict=True):
            stats = _stats(job, seconds * length / max(1, sum(tokens)))
            if job.path:
                sequences = job.probe.sequences * (1 + job.probe.before) if job.probe else ()
                scores = tuple(np.zeros(len(read) - start, np.float32) for read, start in sequences)
                stats = replace(stats, step=replace(await self.step(job.policy, job.path), scores=scores))
            results.append(stats)
        return tuple(results)

    async def step(self, policy: str, path: str) -> StepResult:
        self.check()
        config, step = self._policies[policy]
        seconds = await self._compute(self.draw(self._rates.update))
        await self.carry_state()
        self._policies[policy] = config, step + 1
        return self._written(policy, path, seconds)

    async def close(self, policy: str) -> None:
        self._policies.pop(policy, None)

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        await self._compute(self._rates.token * len(tokens))
        return np.zeros(len(tokens) - start, np.float32)

    async def get_state(self, policy: str) -> Any:
        """A training state is three times its adapter's part of the file; it travels."""
        await self.carry_state()
        return self._policies[policy]

    async def set_state(self, policy: str, moved: Any) -> None:
        await self.carry_state()
        self._policies[policy] = moved

    async def _compute(self, seconds: float) -> float:
        """At the recorded speed, after all before; returns simulated seconds."""
        self.check()
        if seconds <= 0:
            return 0.0
        async with self._turn:
            await self.rest(seconds / self.site.speed)
        return seconds / self.site.speed

    def _seconds(self, groups: Sequence[TrainGroup]) -> float:
        """Groups of equal rewards need no pass."""
        rates = self._rates
        passed = [group for group in groups if any(sequence.advantage for sequence in group.sequences)]
        if not passed:
            return 0.0
        mean = rates.a_pass + len(passed) * rates.group + rates.token * sum(map(_tokens, passed))
        return mean * self.draw(rates.noise)

    def _written(self, policy: str, path: str, seconds: float) -> StepResult:
        """Writes a real file with a tiny adapter, for recovery and the checker; the network carries the recorded
        size."""
        config, step = self._policies[policy]
        digest = blake2b(f"{policy} {step} {path}".encode(), digest_size=16).digest()
        adapter = {"m.lora_A": np.frombuffer(digest, np.uint16).astype(np.float32)[None]}
        header = StateHeader(config.rank, config.alpha, step, self._shared.fingerprint)
        write_state(Path(path), PolicyState(header, adapter, adapter, adapter), sync=False)
        return self._result(path, step, seconds)

    def _result(self, path: str, step: int, seconds: float) -> StepResult:
        digest = checksum(read_state(Path(path), moments=False).adapter)
        return StepResult(step, path, digest, self._profile.state_bytes, 1.0, seconds)


def _tokens(group: TrainGroup) -> int:
    return sum(len(sequence.tokens) for sequence in group.sequences)


def _stats(job: Job, seconds: float) -> GroupStats:
    counts = {group.number: sum(int(each.mask.sum()) for each in group.sequences) for group in job.groups}
    tokens = sum(counts.values())
    weights = {number: np.zeros(count, np.float16) for number, count in counts.items() if count}
    return GroupStats(tokens, 0.0, 0.0, 0, 0.0, 0.0, 0.0, seconds, tokens, weights)


class SimulatedHandle:
    """The used part of ``workers.WorkerHandle``."""

    node = ""
    pid = 0

    def __init__(self, device: Device) -> None:
        self.device = device
        self.death = device.death
        self.died = device.died

    def proxy(self, protocol: Any, posted: Collection[str] = ()) -> Any:
        return self.device

    async def stop(self) -> None:
        self.died.set()


class SimulatedWorkers(WorkerProcesses):
    """They start together, and die with their node."""

    def __init__(self, make: Callable[[str], Device]) -> None:
        """``make`` a device by the worker's name; raises ``WorkerDied`` if its node is away."""
        super().__init__(Path(), 0)
        self._make = make
        self.starts = 0

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        self.starts += 1
        await asyncio.gather(*map(self.start_again, specs))

    async def start_again(self, spec: WorkerSpec) -> None:
        await asyncio.sleep(START)
        self.handles[spec.name] = cast(WorkerHandle, SimulatedHandle(self._make(spec.name)))

    def lose(self, node: str) -> None:
        for handle in cast(dict[str, SimulatedHandle], self.handles).values():
            if handle.device.site.node == node:
                handle.died.set()


CHARACTERS = 4
"""Per token: texts are as long as real ones."""
EVER = "recorded"
FIRST = 24
"""Tokens of an unrecorded first prompt."""


def message(tokens: int, about: str) -> Message:
    """``about`` distinguishes instances."""
    head = f"{tokens} {about} "
    return Message("user", head + "." * max(0, CHARACTERS * tokens - len(head)))


class SimulatedRenderer:
    """First prompts are equal within a group, and differ between instances."""

    stop_ids = (STOP,)
    warning = ""
    thinks = switch = False
    thread = wanted = None

    def known(self, messages: Sequence[Message], tools: Any = (), thinking: bool | None = None) -> None:
        """See ``Renderer``."""

    def opening(
        self, messages: Sequence[Message], tools: Any = (), thinking: bool | None = None, room: int | None = None
    ) -> Opening:
        tokens, about, *_ = messages[0].content.split(" ", 2)
        digest = blake2b(about.encode(), digest_size=16).digest()
        first = 2 + int.from_bytes(digest[:3], "little")
        return Opening((first, *[1] * (max(1, int(tokens)) - 1)), digest)

    def follow(
        self,
        history: Sequence[Said],
        new: Sequence[Message],
        tools: Any = (),
        thinking: bool | None = None,
        room: int | None = None,
        anew: bool = False,
    ) -> Continuation:
        return Continuation([1] * max(1, int(new[0].content.split(" ", 1)[0])), anew=False)

    def parse(self, tokens: Sequence[int], prompt: Sequence[int] = (), tools: bool = False) -> Spoken:
        text = f"{tokens[0] if tokens else ''}".ljust(CHARACTERS * len(tokens), ".")
        return Spoken(tuple(tokens), text, (), text)

    def stopped_at(self, tokens: Sequence[int], stops: Sequence[str]) -> int:
        return len(tokens)

    def check_thinking(self, wanted: bool | None) -> None:
        """See ``Renderer``."""


@dataclass
class SimulatedEnvironments:
    """The used part of ``EnvironmentService``."""

    profile: Profile
    seed: int
    outcomes: OutcomeCounts = field(default_factory=OutcomeCounts)
    _plays: Counter[str] = field(default_factory=Counter)
    """Per episode: repeats have other results."""

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        return ()

    def processes(self) -> list[tuple[str, int]]:
        return []

    async def refresh(self, name: str) -> None:
        """See ``EnvironmentService``."""

    def known(self, name: str) -> bool:
        return self.profile.find(name, "") is not None

    def validate(self, name: str, config: dict[str, Any], version: str | None = None) -> dict[str, Any]:
        if not self.known(name):
            raise EnvironmentMissing(f"Nothing is recorded of the environment {name!r}.")
        return config

    def full_name(self, name: str, version: str | None) -> str:
        return name

    def resolve(self, name: str) -> Any:
        return SimpleNamespace(name=name.rpartition("/")[2], agents=(), ranked=False, scored=False, rows="")

    async def bind(
        self, name: str, version: str | None = None, config: dict[str, Any] | None = None, data: Any = None
    ) -> Any:
        return SimpleNamespace(
            environment=name,
            recorded=self.profile.find(name, config_key(config or {})),
            declared=self.resolve(name),
            config=config or {},
            data=None,
            digest="",
            environment_version=EVER,
            code=EVER,
            rows=(EVER, ""),
            cut=False,
            ends="",
            rest=None,
            release=lambda: None,
        )

    async def facts(self, lease: Any) -> DataFacts:
        return DataFacts()

    async def room(self, lease: Any) -> None:
        """Always."""

    async def look(self, lease: Any, spec: EpisodeSpec, opens: Opens | None = None) -> Ask:
        turns = self._group(lease, spec)[0].turns
        agent, given = (turns[0].agent, turns[0].given) if turns else ("agent", FIRST)
        return Ask(agent=agent, messages=(message(given, _about(lease, spec)),))

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        """Uncounted episodes measure a constant answer: it earns nothing."""
        loop = asyncio.get_running_loop()
        began, key = loop.time(), f"{self.seed}/{_about(lease, spec)}/{spec.seed}/{spec.member}"
        self._plays[key] += 1
        random, failures = Random(f"{key}/{self._plays[key]}"), lease.recorded.failures
        if spec.split == "train" and random.random() < failures.share:
            await asyncio.sleep(random.choice(failures.seconds))
            outcome = EpisodeOutcome("error", failure=Failure("It failed as often as was recorded."))
        else:
            episode = self._episode(random, lease, spec, self._plays[key])
            await self._speak(episode, lease, spec, answer)
            outcome = EpisodeOutcome("ok", episode.rewards if counts else dict.fromkeys(episode.rewards, 0.0))
        outcome = replace(outcome, seconds=loop.time() - began)
        if counts:
            self.outcomes.add(lease.environment, lease.environment_version, outcome)
        return outcome

    async def _speak(self, episode: RecordedEpisode, lease: Any, spec: EpisodeSpec, answer: Answer) -> None:
        """Each turn follows the reply that it followed in the record."""
        about, replied = _about(lease, spec), [asyncio.Event() for _ in episode.turns]
        first = {turn.agent: turn.given for turn in reversed(self._group(lease, spec)[0].turns)}
        """What an agent reads first is common to the group."""

        async def ask(place: int, turn: RecordedTurn) -> None:
            if turn.after >= 0:
                await replied[turn.after].wait()
            await asyncio.sleep(turn.delay)
            REPLY.set(turn.said)
            given = first.pop(turn.agent, turn.given)
            await answer(Ask(agent=turn.agent, messages=(message(given, f"{about}/{turn.agent}"),)))
            replied[place].set()

        asks = [asyncio.ensure_future(ask(place, turn)) for place, turn in enumerate(episode.turns)]
        try:
            await asyncio.gather(*asks)
        finally:
            for task in asks:
                task.cancel()
        await asyncio.sleep(episode.tail)
        getattr(answer, "over", lambda: None)()
        await asyncio.sleep(episode.scoring)

    def _group(self, lease: Any, spec: EpisodeSpec) -> tuple[RecordedEpisode, ...]:
        """A group's samples come from one recorded group."""
        recorded: RecordedEnvironment = lease.recorded
        groups = recorded.groups if spec.split == "train" else recorded.held_out or recorded.groups
        return Random(f"{self.seed}/{_about(lease, spec)}/{spec.seed}").choice(groups)

    def _episode(self, random: Random, lease: Any, spec: EpisodeSpec, play: int) -> RecordedEpisode:
        group = list(self._group(lease, spec))
        if play > 1:
            return random.choice(group)
        Random(f"{self.seed}/{_about(lease, spec)}/{spec.seed}/members").shuffle(group)
        return group[spec.member % len(group)]


def _about(lease: Any, spec: EpisodeSpec) -> str:
    return f"{lease.environment}/{spec.split}/{spec.index}"
