"""The engine's interface to environments: text and rewards, never tokens.

Everything here crosses a JSON wire from code that may be broken or hostile, so it is validated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from marlaas.plugins.data import Survey
from marlaas.plugins.messages import Answer, Ask, Endpoint, Reply
from marlaas.plugins.parameters import Parameter
from marlaas.plugins.rewards import Transcript

from ..errors import ConfigError
from ..trajectories import Episode, EpisodeStatus, Failure, Split, Transcripts, TurnReward

EventKind = Literal[
    "loading",
    "loaded",
    "rejected",
    "removed",
    "hidden",
    "waiting",
    "building",
    "unconfined",
    "elsewhere",
    "polled",
    "died",
    "restarted",
    "quarantined",
    "recovered",
]

Rows = Literal["", "own", "task"]


@dataclass(frozen=True)
class EpisodeSpec:
    """The episode to run."""

    split: Split
    index: int
    seed: int
    """The run's seed; 0 for the eval split, so that every run is measured on the same instances."""
    member: int
    config: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    data: Mapping[str, Any] | None = None
    """The task's data in the form of ``plugins.data.Source.record``; None: the environment's own."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """The end of an episode. Only ``ok`` has rewards."""

    status: EpisodeStatus
    rewards: dict[str, float] = field(default_factory=dict)
    """By agent name, finite."""
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float | str] = field(default_factory=dict)
    invalid: str = ""
    """Why the environment called the agent's behavior invalid; such an episode is ``ok`` and has a reward."""
    failure: Failure | None = None
    """Why it failed; with status ``ok``, the exception for which the environment pays ``on_error``."""
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()
    overloaded: bool = False
    """True if a limit of wall time ended it because the machine was overloaded: the environment is not to blame."""
    died: bool = False
    task: Any = None
    transcript: Transcript | None = None


FAILED: tuple[EpisodeStatus, ...] = ("error", "timeout", "cancelled")
"""Ends of failed episodes. A skipped instance is unusable, but no failure."""


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode that was run, with the engine's own data."""

    episode: Episode
    transcripts: Transcripts
    prompt: bytes | None
    outcome: EpisodeOutcome
    seconds: float = 0.0
    earlier: tuple[EpisodeOutcome, ...] = ()
    dropped: bool = False

    @property
    def outcomes(self) -> tuple[EpisodeOutcome, ...]:
        return self.earlier if self.dropped else (*self.earlier, self.outcome)

    @property
    def rewarded(self) -> bool:
        return self.outcome.status == "ok"

    @property
    def lost(self) -> bool:
        return not self.dropped and self.outcome.status in FAILED

    def judged(self, outcome: EpisodeOutcome) -> FinishedEpisode:
        rewards = outcome.rewards if outcome.status == "ok" else {}
        episode = replace(
            self.episode,
            status=outcome.status,
            trajectories=tuple(replace(t, reward=rewards.get(t.agent)) for t in self.episode.trajectories),
            parts=outcome.parts,
            failure=outcome.failure,
        )
        return replace(self, episode=episode, outcome=outcome)


@dataclass(frozen=True)
class FinalReward:
    """The reward of an agent that will not speak again in an episode that continues."""

    agent: str
    reward: float
    """Finite; its whole reward."""
    paid: tuple[TurnReward, ...] = ()


class Listener(Protocol):
    """The episode that asked for an address; gets the calls of programs there."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that may speak; any if empty."""

    async def answer(self, ask: Ask) -> Reply:
        """Answer a program's ask like one of the environment."""

    def calls(self, agent: str, under_way: int, replies: int) -> None:
        """A program has called the model as ``agent``, or got an answer.

        ``under_way``: calls of all agents that wait for the model; ``replies``: those of the agent in its first
        conversation.
        """

    def failed(self, error: BaseException) -> None:
        """The episode cannot continue: its caller gets ``error``."""


Opens = Callable[[Listener], Awaitable[Endpoint]]
"""Gives an episode an address for its programs until its end, the same each time. Raises ``MarlaasError``."""


async def no_endpoint(_listener: Listener) -> Endpoint:
    """Refuses every episode an address."""
    raise ConfigError("No endpoint is served here.", "Play the environment in an engine that serves endpoints.")


@dataclass(frozen=True)
class Answering:
    """An ``Answer`` that also gets events of the episode."""

    answer: Answer
    over: Callable[[], None] = lambda: None
    """The episode asks nothing more; it may still have to be scored."""
    settle: Callable[[FinalReward], None] = lambda final: None
    """An agent's reward is final; at most once per agent and episode."""
    endpoint: Opens = no_endpoint

    def __call__(self, ask: Ask) -> Awaitable[Reply]:
        return self.answer(ask)


def endpoint_of(answer: Answer) -> Opens:
    """The answer's way to give an episode an address; it refuses if there is none."""
    opens: Opens = getattr(answer, "endpoint", no_endpoint)
    return opens


@dataclass(frozen=True)
class Unscored:
    """An episode that a score function in another process still has to reward."""

    task: Any
    """JSON."""
    earned: dict[str, float] = field(default_factory=dict)
    """By agent, finite: added to the score."""
    metrics: dict[str, float | str] = field(default_factory=dict)
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """A group's ranking: finite rewards by agent, for each sample in order."""

    rewards: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class Crew:
    """The processes of a version, and their work."""

    playing: int = 0
    scoring: int = 0
    live: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class DataFacts:
    """Facts of the rows of an environment's tasks."""

    train: int = 0
    """Rows of the train split; 0: it draws from nothing, and never ends."""
    held_out: int = 0
    digest: str = ""
    """A hash of the evaluation rows in their order: scores with the same digest compare."""
    survey: Survey | None = None


@dataclass(frozen=True)
class EnvironmentInfo:
    """One environment of one plugin, as the screen shows it."""

    name: str
    """"plugin/environment"; only the plugin's name if no version ever served and its files show none."""
    version: str
    """Content hash of the serving version; empty if none ever did."""
    state: str
    """ready, loading (the newest content takes long; an older version may serve), broken (no version serves, or this
    environment of a ``.toml`` file is wrong), stale (an older version serves, the newest edit is broken), failing (only
    errors with some parameters; tasks with these wait), hidden (another plugin has its name), waiting (for a person to
    allow its libraries) or building (they are being installed)
    """
    parameters: tuple[Parameter, ...] = ()
    failure: Failure | None = None
    path: str = ""
    description: str = ""
    agents: tuple[str, ...] = ()
    crew: Crew = Crew()
    rows: Rows = ""


@dataclass(frozen=True)
class EnvironmentEvent:
    """An event of a plugin, for the log and the screen."""

    kind: EventKind
    plugin: str
    version: str
    failure: Failure | None = None
