"""The engine's interface to environments: text and rewards, never tokens; all validated, since their code may be
hostile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

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
    """0 for the eval split: all runs get the same instances."""
    member: int
    config: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    data: Mapping[str, Any] | None = None
    """See ``plugins.data.Source.record``; None: the environment's own."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """The end of an episode. Only ``ok`` has rewards."""

    status: EpisodeStatus
    rewards: dict[str, float] = field(default_factory=dict)
    """By agent name, finite."""
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float | str] = field(default_factory=dict)
    invalid: str = ""
    """Why the agent's behavior is invalid; then ``ok``, with a reward."""
    failure: Failure | None = None
    """With ``ok``: the exception that earned ``on_error``."""
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()
    overloaded: bool = False
    """A wall time limit on an overloaded machine: the environment is not to blame."""
    died: bool = False
    task: Any = None
    transcript: Transcript | None = None


FAILED: tuple[EpisodeStatus, ...] = ("error", "timeout", "cancelled")
"""A skipped instance is unusable, but no failure."""


@dataclass(frozen=True)
class FinishedEpisode:
    """A finished episode with the engine's own data."""

    episode: Episode
    transcripts: Transcripts
    prompt: bytes | None
    outcome: EpisodeOutcome
    seconds: float = 0.0
    earlier: tuple[EpisodeOutcome, ...] = ()
    dropped: bool = False
    rejected: str = ""
    """The last refusal that its program heard."""

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
    """The reward of an agent that will not speak again in a continuing episode."""

    agent: str
    reward: float
    """Finite."""
    paid: tuple[TurnReward, ...] = ()


Threads = Literal["all", "main", "longest"]


class Listener(Protocol):
    """An episode with an address for programs' calls."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Empty: any."""

    @property
    def train(self) -> Threads:
        """Threads of an agent's calls."""

    async def answer(self, ask: Ask) -> Reply:
        """Answer a program's ask like the environment's."""

    def calls(self, agent: str, under_way: int, replies: int) -> None:
        """``under_way``: all agents' waiting calls; ``replies``: those in the agent's first conversation."""

    def failed(self, error: BaseException) -> None:
        """The episode cannot continue: its caller gets ``error``."""


Opens = Callable[[Listener], Awaitable[Endpoint]]
"""Gives an episode one address until its end. Raises ``MarlaasError``."""


async def no_endpoint(_listener: Listener) -> Endpoint:
    """Refuses every episode an address."""
    raise ConfigError("No endpoint is served here.", "Play the environment in an engine that serves endpoints.")


@dataclass(frozen=True)
class Answering:
    """Also gets events of the episode."""

    answer: Answer
    over: Callable[[], None] = lambda: None
    """Scoring may follow."""
    settle: Callable[[FinalReward], None] = lambda final: None
    """An agent's reward is final; at most once per agent and episode."""
    endpoint: Opens = no_endpoint
    rejected: Callable[[], str] = str
    """The last refusal that its program heard."""

    def __call__(self, ask: Ask) -> Awaitable[Reply]:
        return self.answer(ask)


def endpoint_of(answer: Answer) -> Opens:
    """The answer's ``Opens``, or a refusal."""
    opens: Opens = getattr(answer, "endpoint", no_endpoint)
    return opens


@dataclass(frozen=True)
class Unscored:
    """An episode that another process still has to score."""

    task: Any
    """JSON."""
    earned: dict[str, float] = field(default_factory=dict)
    """By agent, finite: added to the score."""
    metrics: dict[str, float | str] = field(default_factory=dict)
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """A group's ranking: for each sample, finite rewards by agent."""

    rewards: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class Crew:
    """A version's processes and their work."""

    playing: int = 0
    scoring: int = 0
    live: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class DataFacts:
    """Facts of the rows of an environment's tasks."""

    train: int = 0
    """Rows of the train split; 0: none, it never ends."""
    held_out: int = 0
    digest: str = ""
    """Hash of the evaluation rows in order: scores with equal digests compare."""


@dataclass(frozen=True)
class EnvironmentInfo:
    """One environment of one plugin for the screen."""

    name: str
    """"plugin/environment"; only the plugin if no environment is known."""
    version: str
    """Content hash of the serving version."""
    state: str
    """ready, loading (an older version may serve), broken (no version serves, or wrong in a ``.toml`` file), stale (an
    older version serves, the newest edit is broken), failing (only errors with some parameters; tasks with these wait),
    hidden (another plugin has its name), waiting (for consent to its libraries) or building (its libraries)"""
    parameters: tuple[Parameter, ...] = ()
    failure: Failure | None = None
    path: str = ""
    description: str = ""
    agents: tuple[str, ...] = ()
    crew: Crew = Crew()
    rows: Rows = ""
    program: bool = False
    """True if an external program plays it: it asks at an address."""
    context: int = 0
    """Tokens of a conversation that it needs; 0: unknown."""


@dataclass(frozen=True)
class EnvironmentEvent:
    """For log and screen."""

    kind: EventKind
    plugin: str
    version: str
    failure: Failure | None = None
