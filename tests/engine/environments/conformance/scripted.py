"""A subject whose environment is a function of this process: what checks do with it can be told exactly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from marlaas.engine.environments.conformance.checks import Observed
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.subject import CONSTANTS, Canned, Draw, Played, Subject
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.trajectories import Failure, Split
from marlaas.plugins import Episode, Invalid, Skip
from marlaas.plugins.messages import Answer, Ask, Message, Reply
from marlaas.plugins.rewards import rewards_of

Play = Callable[[Episode], Awaitable[Any]]


class Scripted(Subject):
    """Plays a function; counts the processes that there would have been."""

    def __init__(self, function: Play, timeout: float = 60.0) -> None:
        self.config: dict[str, Any] = {}
        self.timeout = timeout
        self.agents: tuple[str, ...] = ()
        self.ranked = False
        self.name = "scripted"
        self.processes = 0
        self.played = 0
        self.watching = False
        self._function = function

    async def renew(self) -> float:
        self.processes += 1
        return 0.1

    def watch(self) -> None:
        self.watching = True

    def watched(self) -> dict[tuple[str, int], float]:
        self.watching = False
        return {}

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        self.played += 1
        fault: list[Exception] = []

        async def ask(asked: Ask) -> Reply:
            try:
                return await answer(asked)
            except Exception as error:
                fault.append(error)
                raise

        episode = Episode(
            ask, split=spec.split, index=spec.index, seed=spec.seed, member=spec.member, declared=self.agents
        )
        try:
            result = await self._function(episode)
        except Skip:
            return EpisodeOutcome("skip")
        except Invalid as error:
            result = error.reward
        except TimeoutError:
            return EpisodeOutcome("timeout", failure=Failure("too late", "env.py", 7))
        except Exception as error:
            if error in fault:
                raise
            return EpisodeOutcome("error", failure=Failure(f"{type(error).__name__}: {error}", "env.py", 3))
        rewards = rewards_of(result, episode.payees, episode.earned)
        return EpisodeOutcome("ok", rewards.by_agent)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def asking(prompt: str, split: Split = "train", index: int = 0) -> Draw:
    """A draw whose first prompt is ``prompt``."""
    return Draw(split, index, Ask("agent", (Message("user", prompt),)))


def ended(outcome: EpisodeOutcome, split: Split = "train", index: int = 0) -> Draw:
    """A draw without a prompt."""
    return Draw(split, index, outcome)


def scored(reward: float, reply: Canned = CONSTANTS[0], index: int = 0) -> Played:
    """An episode that ended with a reward."""
    return Played(reply, index, EpisodeOutcome("ok", {"agent": reward}))


def judged(check: Callable[[Observed], Iterator[Finding]], **seen: Any) -> list[Finding]:
    """What a check finds in these observations."""
    return list(check(Observed(**seen)))


def levels(findings: list[Finding]) -> list[str]:
    """The levels alone."""
    return [finding.level for finding in findings]


def only(findings: list[Finding]) -> Finding:
    """The one finding that there is."""
    (finding,) = findings
    return finding
