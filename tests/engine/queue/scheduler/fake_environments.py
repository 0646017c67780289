"""One environment without a process, for tests only: its latencies are turns of the event loop, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from marlaas.engine.environments.protocol import DataFacts, EpisodeOutcome, EpisodeSpec, Ranking
from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer, Ask, Message


@dataclass
class Chance:
    """Delays of 0 to ``most`` turns of the event loop."""

    seed: int
    most: int = 4

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    async def wait(self) -> None:
        for _ in range(self.random.randint(0, self.most)):
            await asyncio.sleep(0)


@dataclass
class FakeEnvironments:
    """One environment of ``turns`` asks; the reward is the parity of what was said."""

    chance: Chance
    turns: int = 1
    agents: tuple[str, ...] = ("agent",)
    declared: tuple[str, ...] = ()
    version: str = "e1"
    failing: Callable[[EpisodeSpec], bool] = lambda spec: False
    ended: Callable[[EpisodeSpec], EpisodeOutcome | None] = lambda spec: None
    """How an episode ends without a question."""
    score: Callable[[EpisodeSpec], float | None] = lambda spec: None
    ranking: Callable[[Sequence[EpisodeOutcome]], Ranking | EpisodeOutcome] | None = None
    data: DataFacts = field(default_factory=DataFacts)
    begun: list[EpisodeSpec] = field(default_factory=list)
    """Training episodes, in the order in which they began."""
    rows: bool = False
    """Whether its tasks are rows of data."""
    code: Callable[[str], str] = lambda version: version
    """What of a version decides how it plays."""
    unseen: Callable[[EpisodeSpec], EpisodeOutcome | None] = lambda spec: None
    """How an instance that is looked at ends before its first question."""
    ends: str = ""
    """What groups wait for."""
    gate: asyncio.Future[float] | None = None
    """Where there is one, episodes wait for it."""
    outcomes: Any = field(default_factory=lambda: SimpleNamespace(add=lambda *outcome: None))

    async def room(self, lease: Any) -> None: ...

    async def refresh(self, name: str) -> None: ...

    def validate(self, name: str, config: dict[str, Any], version: str | None = None) -> dict[str, Any]:
        if name == "broken":
            raise EnvironmentMissing(f"There is no environment {name!r}.")
        return config

    def full_name(self, name: str, version: str | None) -> str:
        return name

    def resolve(self, name: str) -> Any:
        return SimpleNamespace(name=name, agents=self.declared)

    async def bind(
        self, name: str, version: str | None = None, config: dict[str, Any] | None = None, data: Any = None
    ) -> Any:
        await self.chance.wait()
        return SimpleNamespace(
            environment=name,
            environment_version=version or self.version,
            code=self.code(version or self.version),
            data=data,
            rows=(version or self.version, ""),
            digest="",
            declared=SimpleNamespace(name=name, ranked=self.ranking is not None, agents=self.declared, rows=self.rows),
            config=self.validate(name, config or {}),
            cut=False,
            ends=self.ends,
            rest=None,
            release=lambda: None,
        )

    async def facts(self, lease: Any) -> DataFacts:
        await self.chance.wait()
        return self.data

    async def rank(
        self, lease: Any, members: Sequence[EpisodeOutcome], counts: bool = False
    ) -> Ranking | EpisodeOutcome:
        await self.chance.wait()
        assert self.ranking is not None
        return self.ranking(members)

    async def look(self, lease: Any, spec: EpisodeSpec, opens: object = None) -> Ask | EpisodeOutcome:
        return self.unseen(spec) or self.ask_for(spec, 0, self.agents[0])

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if spec.split == "train":
            self.begun.append(spec)
        await self.chance.wait()
        if self.gate is not None:
            await self.gate
        if (ended := self.ended(spec)) is not None:
            return ended
        if self.failing(spec):
            return EpisodeOutcome("error", failure=Failure("it broke", "env.py", 3))
        said = ""
        for turn in range(self.turns):
            for agent in self.agents:
                said += (await answer(self.ask_for(spec, turn, agent))).text
                await self.chance.wait()
        reward = self.score(spec)
        reward = float(sum(map(ord, said)) % 2) if reward is None else reward
        return EpisodeOutcome("ok", dict.fromkeys(self.agents, reward))

    def ask_for(self, spec: EpisodeSpec, turn: int, agent: str) -> Ask:
        return Ask(agent=agent, messages=(Message("user", f"{spec.split} {spec.index} {turn}"),))
