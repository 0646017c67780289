"""What the checks know of the environment that they check: how to play it, and how to begin in a fresh process."""

from __future__ import annotations

from typing import Any, Protocol

from marlaas.plugins.messages import Answer

from ...trajectories import Split
from ..probe import PATIENCE
from ..protocol import EpisodeOutcome, EpisodeSpec


class Subject(Protocol):
    """An environment under a complete configuration."""

    @property
    def config(self) -> dict[str, Any]:
        """Its parameters with defaults filled in."""

    @property
    def timeout(self) -> float:
        """Seconds of its own that an episode may take."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Those that it declares; empty where it declares none."""

    @property
    def ranked(self) -> bool:
        """Whether a ranking of its groups takes the place of its own rewards in training."""

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Play one episode. Raises what ``answer`` raises; what the plugin does wrong is in the outcome."""

    async def renew(self) -> float:
        """Go on in a fresh process; the seconds that its start took. Raises ``BrokenPlugin``."""


def limit_of(subject: Subject) -> float:
    """Seconds of its own that an episode may take while it is checked."""
    return min(PATIENCE, subject.timeout)


def instance(subject: Subject, split: Split, index: int, member: int = 0) -> EpisodeSpec:
    """An episode of the run with seed 0."""
    return EpisodeSpec(split, index, seed=0, member=member, config=subject.config, timeout=limit_of(subject))
