"""Simulated environments: an episode does what a recorded one did; messages are counts of tokens."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any

from marlaas.plugins.messages import Answer, Ask, Message

from ..environments.outcomes import OutcomeCounts
from ..environments.protocol import DataFacts, EnvironmentInfo, EpisodeOutcome, EpisodeSpec, Opens
from ..errors import EnvironmentMissing
from ..rollout.renderer import Continuation, Opening, Said
from ..rollout.spoken import Spoken
from ..trajectories import Failure
from .profile import Profile, RecordedEnvironment, RecordedEpisode, RecordedFailures, config_key
from .time import EngineTime
from .workers import REPLY, STOP

# A renderer without a tokenizer: a message gives its number of tokens and its instance.
#
# The tokens of a first prompt are the same within a group, and differ between instances, as real ones do.

CHARACTERS = 4
"""Characters of a token: texts in the store are as long as real ones."""


def message(tokens: int, about: str) -> Message:
    """A message of this many tokens; ``about`` distinguishes instances."""
    head = f"{tokens} {about} "
    return Message("user", head + "." * max(0, CHARACTERS * tokens - len(head)))


class SimulatedRenderer:
    """``rollout.Renderer`` for ``message``."""

    stop_ids = (STOP,)
    warning = ""
    rewrites = thinks = switch = False
    thread = None

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
    ) -> Continuation:
        return Continuation([1] * max(1, int(new[0].content.split(" ", 1)[0])), anew=False)

    def parse(self, tokens: Sequence[int], prompt: Sequence[int] = (), tools: bool = False) -> Spoken:
        text = f"{tokens[0] if tokens else ''}".ljust(CHARACTERS * len(tokens), ".")
        return Spoken(tuple(tokens), text, (), text)

    def stopped_at(self, tokens: Sequence[int], stops: Sequence[str]) -> int:
        return len(tokens)

    def check_thinking(self, wanted: bool | None) -> None:
        """See ``Renderer``."""


# Simulated environments: an episode repeats a recorded one of the same environment, with its durations.
#
# Samples of a group are drawn from one recorded group, since they have their instance in common.

EVER = "recorded"
FIRST = 24
"""Tokens of a first prompt without a recorded one."""


@dataclass
class SimulatedLease:
    """The used part of ``environments.Lease``."""

    environment: str
    recorded: RecordedEnvironment
    declared: Any
    config: dict[str, Any]
    data: Mapping[str, Any] | None = None
    digest: str = ""
    environment_version: str = EVER
    code: str = EVER
    rows: tuple[str, str] = (EVER, "")
    cut: bool = False
    ends: str = ""
    rest: None = None

    def release(self) -> None:
        """See ``Lease``."""


@dataclass(frozen=True)
class Declared:
    """The used part of an environment's declaration."""

    name: str
    agents: tuple[str, ...] = ()
    ranked: bool = False
    scored: bool = False
    rows: str = ""


class Host:
    """The process of an environment; it does one thing after the other."""

    def __init__(self) -> None:
        self._free = 0.0

    async def work(self, seconds: float) -> None:
        if seconds > 0:
            now = asyncio.get_running_loop().time()
            self._free = max(self._free, now) + seconds
            await asyncio.sleep(self._free - now)


@dataclass
class SimulatedEnvironments:
    """The used part of ``EnvironmentService``."""

    profile: Profile
    seed: int
    engine: EngineTime
    outcomes: OutcomeCounts = field(default_factory=OutcomeCounts)
    _plays: Counter[str] = field(default_factory=Counter)
    """Runs of each episode: a failed one is run again, with another result."""
    _hosts: defaultdict[str, Host] = field(default_factory=lambda: defaultdict(Host))

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        return ()

    def processes(self) -> list[tuple[str, int]]:
        return []

    async def reload(self, plugin: str) -> None:
        """See ``EnvironmentService``."""

    async def refresh(self, name: str) -> None:
        """See ``EnvironmentService``."""

    def known(self, name: str) -> bool:
        return self.profile.find(name, "") is not None

    def validate(self, name: str, config: dict[str, Any], version: str | None = None) -> dict[str, Any]:
        self._found(name, config)
        return config

    def full_name(self, name: str, version: str | None) -> str:
        return name

    def resolve(self, name: str) -> Any:
        return Declared(name)

    async def bind(
        self, name: str, version: str | None = None, config: dict[str, Any] | None = None, data: Any = None
    ) -> SimulatedLease:
        recorded = self._found(name, config or {})
        return SimulatedLease(name, recorded, Declared(name.rpartition("/")[2]), config or {})

    async def facts(self, lease: SimulatedLease, survey: bool = False) -> DataFacts:
        return DataFacts()

    async def room(self, lease: SimulatedLease) -> None:
        """There is always a place."""

    async def rank(self, lease: SimulatedLease, members: Sequence[EpisodeOutcome], counts: bool = False) -> Any:
        raise NotImplementedError("nothing is ranked in a simulation: rewards are as they were recorded")

    async def look(self, lease: SimulatedLease, spec: EpisodeSpec, opens: Opens | None = None) -> Ask | EpisodeOutcome:
        group = self._group(lease, spec)
        first = group[0].turns[0] if group[0].turns else None
        given = first.given if first else FIRST
        return Ask(agent=first.agent if first else "agent", messages=(message(given, _about(lease, spec)),))

    async def play(
        self, lease: SimulatedLease, spec: EpisodeSpec, answer: Answer, counts: bool = False
    ) -> EpisodeOutcome:
        loop = asyncio.get_running_loop()
        began, key = loop.time(), f"{self.seed}/{_about(lease, spec)}/{spec.seed}/{spec.member}"
        self._plays[key] += 1
        random = Random(f"{key}/{self._plays[key]}")
        recorded = lease.recorded
        failures = recorded.failures if spec.split == "train" else recorded.held_out_failures
        if counts:
            self.engine.episode()
        await self._hosts[lease.environment].work(self.profile.hosts.episode)
        if random.random() < failures.share:
            outcome = await _failed(random, failures)
        else:
            outcome = await self._played(self._member(random, lease, spec, self._plays[key]), lease, spec, answer)
        rewards = outcome.rewards if counts else dict.fromkeys(outcome.rewards, 0.0)
        outcome = EpisodeOutcome(outcome.status, rewards, failure=outcome.failure, seconds=loop.time() - began)
        if counts:
            self.engine.episode()
            self.outcomes.add(lease.environment, lease.environment_version, outcome)
        return outcome

    async def _played(
        self, recorded: RecordedEpisode, lease: SimulatedLease, spec: EpisodeSpec, answer: Answer
    ) -> EpisodeOutcome:
        about, opened = _about(lease, spec), self._group(lease, spec)[0]
        loop = asyncio.get_running_loop()
        replied: list[asyncio.Future[None]] = [loop.create_future() for _ in recorded.turns]
        spoken: set[str] = set()
        host, busy = self._hosts[lease.environment], self.profile.hosts.turn

        async def ask(place: int) -> None:
            turn = recorded.turns[place]
            if turn.after >= 0:
                await replied[turn.after]
            if turn.delay > busy:
                await asyncio.sleep(turn.delay - busy)
            await host.work(busy)
            given = turn.given
            if turn.agent not in spoken:
                shared = next((one for one in opened.turns if one.agent == turn.agent), turn)
                given = shared.given
                spoken.add(turn.agent)
            REPLY.set(turn.said)
            await answer(Ask(agent=turn.agent, messages=(message(given, f"{about}/{turn.agent}"),)))
            if not replied[place].done():
                replied[place].set_result(None)

        if all(turn.after == place - 1 for place, turn in enumerate(recorded.turns)):
            for place in range(len(recorded.turns)):
                await ask(place)
        else:
            async with asyncio.TaskGroup() as group:
                for place in range(len(recorded.turns)):
                    group.create_task(ask(place))
        await asyncio.sleep(recorded.tail)
        over = getattr(answer, "over", None)
        if over is not None:
            over()
        await asyncio.sleep(recorded.scoring)
        return EpisodeOutcome("ok", dict(recorded.rewards))

    def _found(self, name: str, config: Mapping[str, Any]) -> RecordedEnvironment:
        found = self.profile.find(name, config_key(dict(config)))
        if found is None:
            raise EnvironmentMissing(f"Nothing is recorded of the environment {name!r}.")
        return found

    def _group(self, lease: SimulatedLease, spec: EpisodeSpec) -> tuple[RecordedEpisode, ...]:
        recorded = lease.recorded
        groups = recorded.groups if spec.split == "train" else recorded.held_out or recorded.groups
        return Random(f"{self.seed}/{_about(lease, spec)}/{spec.seed}").choice(groups)

    def _member(self, random: Random, lease: SimulatedLease, spec: EpisodeSpec, play: int) -> RecordedEpisode:
        group = list(self._group(lease, spec))
        if play > 1:
            return random.choice(group)
        Random(f"{self.seed}/{_about(lease, spec)}/{spec.seed}/members").shuffle(group)
        return group[spec.member % len(group)]


def _about(lease: SimulatedLease, spec: EpisodeSpec) -> str:
    return f"{lease.environment}/{spec.split}/{spec.index}"


async def _failed(random: Random, failures: RecordedFailures) -> EpisodeOutcome:
    await asyncio.sleep(random.choice(failures.seconds) if failures.seconds else 0.0)
    ended = "timeout" if random.random() < failures.timeouts else "error"
    return EpisodeOutcome(ended, failure=Failure("It failed as often as was recorded."))  # type: ignore[arg-type]
