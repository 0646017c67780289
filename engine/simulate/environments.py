"""Episodes repeat recorded ones; messages are counts of tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random
from types import SimpleNamespace
from typing import Any

from marlaas.plugins.messages import Answer, Ask, Message

from ..environments.outcomes import OutcomeCounts
from ..environments.protocol import DataFacts, EnvironmentInfo, EpisodeOutcome, EpisodeSpec, Opens
from ..errors import EnvironmentMissing
from ..rollout.renderer import Continuation, Opening, Said
from ..rollout.spoken import Spoken
from ..trajectories import Failure
from .profile import Profile, RecordedEnvironment, RecordedEpisode, RecordedTurn, config_key
from .workers import REPLY, STOP

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
