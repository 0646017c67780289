"""What the engine asks of environments, and what it gets back: text and rewards, never tokens.

An episode runs in the plugin's process and asks the model through the engine. Everything here crosses a JSON wire from
code that may be broken or hostile, so it arrives validated or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from marlaas.plugins.data import Survey
from marlaas.plugins.messages import Answer, Ask, Endpoint, Reply
from marlaas.plugins.parameters import Parameter
from marlaas.plugins.scoring import Transcript

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
"""Whose rows an environment draws its tasks from: its own, those of the task file, or none."""


@dataclass(frozen=True)
class EpisodeSpec:
    """Which episode to run."""

    split: Split
    index: int
    seed: int
    """The run's seed; 0 for the eval split, so that every run is measured on the same instances."""
    member: int
    config: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds; None takes the environment's own."""
    data: Mapping[str, Any] | None = None
    """The data that the task names, as ``plugins.data.Source.record`` writes it; None: the environment's own."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode ended. Only ``ok`` has rewards."""

    status: EpisodeStatus
    rewards: dict[str, float] = field(default_factory=dict)
    """By agent name, finite."""
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float | str] = field(default_factory=dict)
    invalid: str = ""
    """Why the environment called the agent's play invalid; such an episode is ``ok`` and has a reward."""
    failure: Failure | None = None
    """Why it failed; with status ``ok``, the exception for which the environment pays ``on_error``."""
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()
    overloaded: bool = False
    """Whether a limit of wall time ended it because the machine was overloaded: the environment is not to blame."""
    died: bool = False
    """Whether its process died: by this episode, or by another one that it played."""
    task: Any = None
    """What the environment was to do, if its ranking needs it; None elsewhere."""
    transcript: Transcript | None = None
    """What was said, if the environment has a ranking; None elsewhere."""


FAILED: tuple[EpisodeStatus, ...] = ("error", "timeout", "cancelled")
"""How an episode ends that has failed. An instance that the environment skips is unusable, which is no failure."""


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode that was run, with what only the engine needs to know of it."""

    episode: Episode
    transcripts: Transcripts
    prompt: bytes | None
    """Hash of the first agent's first prompt; None if nothing was asked."""
    outcome: EpisodeOutcome
    """How it ended, as the environment says."""
    seconds: float = 0.0
    """For how long it ran, by the engine's clock."""
    earlier: tuple[EpisodeOutcome, ...] = ()
    """Outcomes of its earlier runs, which all failed."""
    dropped: bool = False
    """True if its group closed without it while it ran."""

    @property
    def outcomes(self) -> tuple[EpisodeOutcome, ...]:
        """Of all its runs that ended, in order."""
        return self.earlier if self.dropped else (*self.earlier, self.outcome)

    @property
    def rewarded(self) -> bool:
        """True if it has a reward."""
        return self.outcome.status == "ok"

    @property
    def lost(self) -> bool:
        """True if it failed in its last run, too."""
        return not self.dropped and self.outcome.status in FAILED

    def judged(self, outcome: EpisodeOutcome) -> FinishedEpisode:
        """The same episode with the outcome that the ranking of its group gives it."""
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
    """An agent has spoken for the last time in an episode that continues, and this is what it gets."""

    agent: str
    reward: float
    """Finite; its whole reward."""
    paid: tuple[TurnReward, ...] = ()
    """Its own alone."""


class Listener(Protocol):
    """The episode that asked for an address: hears what programs do there."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Who may speak; anybody if it is empty."""

    async def answer(self, ask: Ask) -> Reply:
        """What a program asks goes this way, as what the environment asks does."""

    def calls(self, agent: str, under_way: int, replies: int) -> None:
        """A program has called the model as ``agent``, or has been answered.

        ``under_way``: calls of all agents that wait for the model now; ``replies``: what the agent has said in its
        first conversation.
        """

    def failed(self, error: BaseException) -> None:
        """The episode cannot go on: whoever runs it gets ``error``."""


Opens = Callable[[Listener], Awaitable[Endpoint]]
"""Gives an episode an address at which programs find its model until it is over, the same each time. Raises
``MarlaasError`` if there is none."""


async def no_endpoint(_listener: Listener) -> Endpoint:
    """Refuses every episode an address."""
    raise ConfigError("No endpoint is served here.", "Play the environment in an engine that serves endpoints.")


@dataclass(frozen=True)
class Answering:
    """An ``Answer`` whose owner hears what becomes of the episode meanwhile."""

    answer: Answer
    over: Callable[[], None] = lambda: None
    """The episode has been played: it asks nothing more, though it may yet have to be scored."""
    settle: Callable[[FinalReward], None] = lambda final: None
    """An agent's reward is final; each agent has at most one such in an episode."""
    endpoint: Opens = no_endpoint

    def __call__(self, ask: Ask) -> Awaitable[Reply]:
        """Answer a question."""
        return self.answer(ask)


def endpoint_of(answer: Answer) -> Opens:
    """How whoever answers gives an episode an address; those who give none refuse it."""
    opens: Opens = getattr(answer, "endpoint", no_endpoint)
    return opens


@dataclass(frozen=True)
class Unscored:
    """An episode that was played to its end, and that a score function in another process is to reward."""

    task: Any
    """JSON."""
    earned: dict[str, float] = field(default_factory=dict)
    """By agent, finite: added to the score."""
    metrics: dict[str, float | str] = field(default_factory=dict)
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()


@dataclass(frozen=True)
class Ranking:
    """What a group's ranking gave each of its members, in their order: finite rewards by agent."""

    rewards: tuple[dict[str, float], ...]


@dataclass(frozen=True)
class Crew:
    """The processes of a version, and what they are at."""

    playing: int = 0
    """Processes that run episodes."""
    scoring: int = 0
    """Processes that score or compare its episodes."""
    live: int = 0
    """Episodes in progress."""
    waiting: int = 0
    """Episodes that wait for a place in a process."""


@dataclass(frozen=True)
class DataFacts:
    """What is known of the rows from which an environment draws its tasks."""

    train: int = 0
    """Rows of the train split; 0: it draws its tasks from nothing, and they never end."""
    held_out: int = 0
    """Rows of the evaluation split."""
    digest: str = ""
    """A hash of the evaluation rows in their order: scores on the same digest are scores on the same rows."""
    survey: Survey | None = None
    """What was found in the rows, if that was asked for."""


@dataclass(frozen=True)
class EnvironmentInfo:
    """One environment of one plugin, as the screen shows it."""

    name: str
    """"plugin/environment"; the plugin's name alone where no version of it ever served and its files do not tell."""
    version: str
    """Content hash of the version that serves; empty when none ever did."""
    state: str
    """ready, loading (the newest content takes long; an older version may serve), broken (no version serves, or this is
    one of several environments of a ``.toml`` file, and wrong), stale (an older version serves, the newest edit is
    broken), failing (with some parameters only errors came of it, so tasks with these wait), hidden (another plugin has
    its name), waiting (for somebody to allow its libraries) or building (they are being installed)"""
    parameters: tuple[Parameter, ...] = ()
    failure: Failure | None = None
    """Why the newest edit does not serve."""
    path: str = ""
    description: str = ""
    agents: tuple[str, ...] = ()
    """The agents that it declares; empty if it declares none."""
    crew: Crew = Crew()
    """The processes of the version that serves, which all environments of a plugin share."""
    rows: Rows = ""


@dataclass(frozen=True)
class EnvironmentEvent:
    """Something that happened to a plugin, for the log and the screen."""

    kind: EventKind
    plugin: str
    version: str
    """Of the content that the event is about; empty if there is none."""
    failure: Failure | None = None
