"""What the checks know of the environment that they check: how to play it, and how to begin in a fresh process."""

from __future__ import annotations

from typing import Any, Protocol

from marlaas.plugins.messages import Answer

from ...trajectories import Split
from ..probe import PATIENCE
from ..process.wire import Watched
from ..protocol import EpisodeOutcome, EpisodeSpec


class Subject(Protocol):
    """An environment under a complete configuration."""

    @property
    def config(self) -> dict[str, Any]:
        """Its parameters with defaults filled in."""

    @property
    def timeout(self) -> float:
        """Seconds that an episode may take, without the model's."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it declares; empty where it declares none."""

    @property
    def ranked(self) -> bool:
        """Whether a ranking of its groups replaces its own rewards in training."""

    @property
    def name(self) -> str:
        """Its name, without its plugin's."""

    @property
    def movable(self) -> bool:
        """Whether its author could move its grading into a score function: the code is theirs, and there is none."""

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Play one episode. Raises what ``answer`` raises; what the plugin does wrong is in the outcome."""

    async def watch(self) -> None:
        """Begin to look at what keeps the event loop of its process busy."""

    async def watched(self) -> Watched:
        """End that, and return what was seen."""

    async def renew(self) -> float:
        """Start a fresh process; returns the seconds that this took. Raises ``BrokenPlugin``."""


def limit_of(subject: Subject) -> float:
    """Seconds that an episode may take while it is checked, without the model's."""
    return min(PATIENCE, subject.timeout)


def instance(subject: Subject, split: Split, index: int, member: int = 0) -> EpisodeSpec:
    """An episode of the run with seed 0."""
    return EpisodeSpec(split, index, seed=0, member=member, config=subject.config, timeout=limit_of(subject))
